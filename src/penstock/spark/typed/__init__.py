"""Typed rows: values decoded by a schema of the registry, into columns. Runs in the tasks.

shape.py       what columns a schema has, and Python values into Arrow columns
json_rows.py, avro_rows.py, protobuf_rows.py    one for each kind of schema
pinned.py      which schema and version a read uses; the schema that Spark is told
rows.py        a batch of records as typed rows, and what does not fit
"""
