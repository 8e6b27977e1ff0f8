"""The traffic report: what a Spark job counts in the log, and the page that is made of it.

The job reads every record once. `source` and `counting` run in its tasks, `job` adds up what they have
counted, `facts` is the result, and `page` makes one HTML file of it, with `plots`, `tables`, `words` and
`style`. Only `job`, `source` and `session` know Spark.
"""
