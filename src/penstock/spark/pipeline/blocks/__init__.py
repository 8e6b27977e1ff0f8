"""What a project is written with. Its files import the names from penstock.spark.pipeline."""
