"""The tables of a project as files: their formats, sizes, rows, and which records of the log they hold."""
