"""How far flows have come: reading, and where it is needed writing, the checkpoints that Spark keeps."""
