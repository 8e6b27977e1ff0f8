"""A cache of values by name, beside the log."""
