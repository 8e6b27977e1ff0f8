"""What was read before, once more: a table rebuilt from the log, or its rows sent to a topic."""
