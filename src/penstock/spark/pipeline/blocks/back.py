"""Back: rows of a pipeline into a topic, exactly once, for clients of every protocol.

@to_topic("alerts")
def alerts() -> DataFrame:
    rows = SparkSession.active().readStream.table("device_alerts")
    return rows.selectExpr("device AS key", "to_json(struct(*)) AS value")
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.spark.pipeline.connecting import connection_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Query = Callable[[], "DataFrame"]


def to_topic(topic: str, *, name: str | None = None, **options: str) -> Callable[[Query], Query]:
    """Above a function that gives a stream with the column `value`, and `key` and `headers` if wanted.

    The topic is made where there is none. `name` is that of the flow, the name of the function if not
    given: under it Spark notes what is written, so that another name writes everything anew. `options` go
    to the sink.
    """

    def declare(query: Query) -> Query:
        from pyspark import pipelines as dp

        flow = name or query.__name__
        given = {"createTopics": "true", **options, "topic": topic}
        dp.create_sink(flow, "penstock", {**connection_options(), **given})
        dp.append_flow(target=flow, name=flow)(query)
        return query

    return declare
