"""Staged batches go to the topics that they were staged for. No Kafka."""

import pytest

from penstock.kafka.transactions.rows import Piece
from penstock.kafka.transactions.targets import Targets
from penstock.log.engine import TopicInfo
from penstock.log.errors import TopicReplaced, UnknownPartition, UnknownTopic
from penstock.log.settings import TopicSettings


def info(id: int, partitions: int = 1) -> TopicInfo:
    return TopicInfo(id, "t", partitions, TopicSettings(), 1)


@pytest.mark.parametrize(
    ("known", "fresh", "error"),
    [
        (info(7, 2), None, None),
        (None, info(7, 2), None),
        (info(0, 2), info(7, 2), None),  # this gateway is making it
        (info(7, 1), info(7, 2), None),  # it has grown
        (info(6, 2), info(6, 2), TopicReplaced),
        (info(7, 1), info(7, 1), UnknownPartition),
        (None, None, UnknownTopic),
        (info(6, 2), None, UnknownTopic),
    ],
)
def test_kafka_is_asked_before_a_target_counts_as_gone(
    known: TopicInfo | None, fresh: TopicInfo | None, error: type[Exception] | None
) -> None:
    asked: list[tuple[str, int]] = []

    def ask(name: str, topic_id: int) -> TopicInfo | None:
        asked.append((name, topic_id))
        return fresh

    targets = Targets(lambda name: known, ask)
    piece = Piece("t", 1, 7, 0, 0, 10)
    if error is None:
        targets.check(piece)
    else:
        with pytest.raises(error):
            targets.check(piece)
    assert asked == ([] if known == info(7, 2) else [("t", 7)])
