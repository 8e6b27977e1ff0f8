"""Whether a topic is there for a table: a project is written before anybody has published anything."""

from typing import TYPE_CHECKING

from penstock.client.errors import NotFound
from penstock.spark.options import Selection, TypedOptions
from penstock.spark.pipeline.connecting import broker
from penstock.spark.pipeline.notes import note

if TYPE_CHECKING:
    from penstock.client.flight import FlightClient


def ready(topic: str, schema: str | None = None) -> bool:
    """Whether the topic is there, and a schema by which its values are decoded: the one that is named, or
    the one that the topic is bound to. If not, a note says what is missing."""
    missing = _missing(topic, schema)
    if missing is not None:
        note(f"no table for topic {topic} yet: {missing}")
    return missing is None


def _missing(topic: str, schema: str | None) -> str | None:
    """What keeps its values from being decoded."""
    from penstock.spark.typed.pinned import NotTyped, choose

    def look(client: "FlightClient") -> None:
        client.describe(topic)
        choose(client, Selection(topics=(topic,)), TypedOptions(schema))

    try:
        broker().call(look)
    except (NotFound, NotTyped) as error:
        return str(error)
    return None
