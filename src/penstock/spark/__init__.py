"""Topics as tables of Apache Spark. `pyspark_penstock` makes the source known to Spark by its name.

Imports nothing of the server. Everything here is pickled and sent to executors by Spark.
"""
