"""For `foreachBatch`: writes each batch of a query to topics, exactly once. It takes what the streaming
sink does not: results in update and complete mode, and one batch for several topics.

    from penstock.spark.each_batch import TopicWriter

    writer = TopicWriter(checkpoint, server="127.0.0.1:8815", topic="totals")
    totals.writeStream.outputMode("update").foreachBatch(writer).option("checkpointLocation", checkpoint)

The transaction of a batch is named by the query and the number of the batch, so that a batch that is done
again finds it committed. The id of the query stands in its checkpoint: a new checkpoint is a new query, and
writes everything anew.
"""

import json
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.spark.options import write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class NoQueryId(PenstockError):
    """The checkpoint is that of another query, or of none."""

    checkpoint: str
    reason: str

    line = "{checkpoint} holds no id of a query: give the checkpointLocation of the query; {reason}"


class TopicWriter:
    """Called by Spark with a batch and its number. May be pickled: over Spark Connect it runs elsewhere.

    `options` are those of a write. `name` tells this writer from others of the same query; without it the
    topic does.
    """

    def __init__(self, checkpoint: str, name: str | None = None, **options: object) -> None:
        self._checkpoint = str(checkpoint).rstrip("/")
        self._options = {key: str(value) for key, value in options.items()}
        # Wrong options are told here, and not by the first batch.
        found = write_options({**self._options, "transaction": "x"}, streaming=False)
        self._name = name or found.topic or "topics"
        self._query: str | None = None

    def __call__(self, frame: "DataFrame", batch_id: int) -> None:
        self.write(frame, batch_id)

    def write(self, frame: "DataFrame", batch_id: int) -> None:
        """For a function of your own that does more with the batch."""
        if self._query is None:
            self._query = self._query_id(frame)
        # The number at the end: the broker remembers numbered names as ranges.
        transaction = f"spark-{self._query}-{self._name}-{batch_id}"
        writer = frame.write.format("penstock").options(**self._options)
        writer.option("transaction", transaction).mode("append").save()

    def _query_id(self, frame: "DataFrame") -> str:
        """Spark has written it before the first batch, wherever the checkpoint is."""
        place = f"{self._checkpoint}/metadata"
        try:
            rows: list[Any] = frame.sparkSession.read.text(place).collect()
            return str(json.loads(rows[0][0])["id"])
        except Exception as error:  # Spark's own errors differ between classic and Connect
            reason = " ".join(str(error).split())[:200]
            raise NoQueryId(self._checkpoint, reason) from None
