"""Where staged batches go: the topics that they were staged for, and no others of the same names.

Another gateway may have staged for a topic that this one has not seen yet. To take it for gone would lose
what was decided, so Kafka is asked before that.
"""

from collections.abc import Callable

from penstock.kafka.transactions.rows import Piece
from penstock.log.engine import TopicInfo
from penstock.log.errors import TopicReplaced, UnknownPartition, UnknownTopic

Topics = Callable[[str], TopicInfo | None]
# By name and id.
Fresh = Callable[[str, int], TopicInfo | None]


class Targets:
    """Thread-safe. `known` answers at once, `fresh` asks Kafka, again where it finds another one."""

    def __init__(self, known: Topics, fresh: Fresh) -> None:
        self._known = known
        self._fresh = fresh

    def check(self, piece: Piece) -> None:
        """Raises UnknownTopic, TopicReplaced, UnknownPartition; KafkaTrouble where it cannot be known."""
        if _fits(self._known(piece.topic), piece):
            return
        found = self._fresh(piece.topic, piece.topic_id)
        if found is None:
            raise UnknownTopic(piece.topic)
        if found.id != piece.topic_id:
            raise TopicReplaced(piece.topic)
        if piece.partition >= found.partitions:
            raise UnknownPartition(piece.topic, piece.partition)


def _fits(found: TopicInfo | None, piece: Piece) -> bool:
    return found is not None and found.id == piece.topic_id and piece.partition < found.partitions
