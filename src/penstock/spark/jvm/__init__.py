"""What a command needs that starts Spark itself: Java, the JVM of the driver, and the reason of a failure.

The report and the pipeline stand on it. It knows neither of them.
"""
