"""What another gateway has told a client, this one finds at once, however new it is. A real Kafka."""

from collections.abc import Callable

from kit.engines import WAIT_S, put, values_of

from penstock.log.engine import Engine
from penstock.log.settings import TopicSettings


def test_what_another_gateway_has_just_made(
    kafka_engine: Engine, other_engine: Engine, named: Callable[[str], str]
) -> None:
    """Before the look that finds all topics: with its settings, ends, and under its name again."""
    name = named("fresh")
    for partitions, values in ((1, (b"a", b"b", b"c")), (2, (b"d",))):
        kafka_engine.create_topic(name, partitions, TopicSettings(durability="interval"))
        put(kafka_engine, name, *values)
        made = kafka_engine.topic(name)
        found = other_engine.fresh_topic(name, expected=True).result(WAIT_S)
        assert found == other_engine.topic(name) == made
        assert found is not None and found.settings.durability == "interval"
        assert other_engine.offsets(name, 0) == (0, len(values))
        assert values_of(other_engine, name) == list(values)
        # Nothing is forgotten by one look that does not find it.
        kafka_engine.delete_topic(name).result(WAIT_S)
        assert other_engine.fresh_topic(name).result(WAIT_S) is None


def test_ends_that_another_gateway_has_just_moved(
    kafka_engine: Engine, other_engine: Engine, named: Callable[[str], str]
) -> None:
    name = named("moved")
    kafka_engine.create_topic(name, 2)
    for number in range(1, 4):
        put(kafka_engine, name, b"x", partition=1)
        if number == 1:
            other_engine.fresh_topic(name, expected=True).result(WAIT_S)
        elif number == 2:
            assert other_engine.fresh_offsets(name, 1, seen=2).result(WAIT_S) == (0, 2)
        else:
            other_engine.all_fresh_offsets(name).result(WAIT_S)
        assert other_engine.offsets(name, 1) == (0, number)
