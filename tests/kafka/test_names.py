"""Names of topics in Kafka: legal there, reversible, and what Kafka named stays."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.names import (
    MAX_KAFKA_NAME,
    PREFIX,
    NameTooLongForKafka,
    from_kafka,
    is_own,
    to_kafka,
)

LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}")


@pytest.mark.parametrize(
    ("name", "kafka"),
    [
        ("orders", "orders"),
        ("orders-2.eu_west", "orders-2.eu_west"),
        ("a" * 249, "a" * 249),
        ("clicks/eu", "penstock-name.clicks-2feu"),
        ("bestell-Übersicht", "penstock-name.bestell-2d-c3-9cbersicht"),
        (".", "penstock-name.."),
        ("..", "penstock-name..."),
        ("penstock-name.clicks-2feu", "penstock-name.penstock-2dname.clicks-2d2feu"),
    ],
)
def test_both_ways(name: str, kafka: str) -> None:
    assert to_kafka(name) == kafka
    assert from_kafka(kafka) == name


@pytest.mark.parametrize(
    "name",
    [
        "penstock-name.orders",  # needs no escape, so it is none
        "penstock-name.a-2Fb",  # capitals
        "penstock-name.a-61b",  # an escaped letter
        "penstock-name.a-c3",  # half a character
        "penstock-name.a-",
        "penstock-name.",
    ],
)
def test_what_kafka_named_stays(name: str) -> None:
    assert from_kafka(name) == name
    assert to_kafka(name) == name


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80))
def test_any_name(name: str) -> None:
    kafka = to_kafka(name)
    assert LEGAL.fullmatch(kafka)
    assert kafka not in (".", "..")
    assert from_kafka(kafka) == name


@given(st.from_regex(r"(penstock-name\.)?[a-f0-9._-]{1,20}", fullmatch=True))
def test_any_name_of_kafka(kafka: str) -> None:
    if kafka not in (".", ".."):
        assert to_kafka(from_kafka(kafka)) == kafka


def test_too_long() -> None:
    longest = (MAX_KAFKA_NAME - len(PREFIX)) // 3
    assert len(to_kafka("/" * longest)) <= MAX_KAFKA_NAME
    with pytest.raises(NameTooLongForKafka, match=r"has \d+ bytes as a name of Kafka"):
        to_kafka("/" * (longest + 1))


def test_own_topics() -> None:
    assert is_own("_penstock.metadata")
    assert is_own("__consumer_offsets")
    assert not is_own("_audit")
