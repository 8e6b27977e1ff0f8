"""Whether the tables hold what the log holds, record by record."""
