"""What is not a record: topics, settings and group offsets, in SQLite."""
