"""Lines about messages of a topic: one per topic and minute, and their numbers add up."""

import logging
from pathlib import Path

import pytest
from broker.bench import Bench, numbered

from penstock.broker.options import BrokerOptions
from penstock.broker.topic_log import INTERVAL_US, TopicLog


def test_one_line_per_topic_and_minute() -> None:
    said: list[tuple[str, int, str]] = []
    log = TopicLog(lambda *line: said.append(line))
    log.speak(0)
    log.note("a", 0)
    log.speak(0)
    assert said == []
    log.note("a", 2, "first")
    log.note("a", 3, "last")
    log.note("b", 1)
    log.speak(10)
    assert said == [("a", 5, "last"), ("b", 1, "")]
    log.note("a", 7)
    log.speak(9 + INTERVAL_US)
    assert len(said) == 2
    log.note("a", 1)
    log.speak(10 + INTERVAL_US)
    assert said[2:] == [("a", 8, "")]
    log.speak(10 + 2 * INTERVAL_US)
    assert len(said) == 3
    assert not log._silent_until_us, "quiet topics are forgotten"


@pytest.mark.parametrize("count_drops", [True, False])
def test_messages_dropped_for_the_capacity_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count_drops: bool
) -> None:
    options = BrokerOptions(capacity_messages=10, count_drops=count_drops)
    bench = Bench(str(tmp_path / "data"), options)
    for topic, qos in (("t", 0), ("t", 1), ("enough", 1)):
        bench.subscribe(topic, qos)
    bench.publish("enough", *numbered(range(10)))
    bench.publish("t", *numbered(range(15)))
    bench.advance(100)
    bench.publish("t", *numbered(range(3)))
    bench.advance(59_900)
    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    text = (
        "topic t: {} messages dropped from queues over blipmq.capacity_messages or "
        "blipmq.capacity_bytes; they are still in the log"
    )
    both = [(logging.WARNING, text.format(10)), (logging.WARNING, text.format(6))]
    assert lines == (both[:1] if count_drops else [])
    bench.advance(200)
    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert lines == (both if count_drops else [])
    bench.close()
