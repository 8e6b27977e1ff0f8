"""The source of the building blocks: records of topics, as a stream, or as a table for a backfill."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.spark.pipeline.connecting import connection_options, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Options of a stream that say what it reads when; a range says that by itself.
_OF_STREAMS: Final = frozenset(
    {"subscribe", "subscribepattern", "assign", "maxoffsetspertrigger", "minoffsetspertrigger"}
    | {"maxtriggerdelay", "groupid", "groupidprefix", "failonnewschema"}
)

# By topic and partition: the first offset, and the one behind the last.
Spans = Mapping[tuple[str, int], tuple[int, int]]
_spans: list[Spans] = []


@contextmanager
def as_ranges(spans: Spans) -> Iterator[None]:
    """Meanwhile `stream` gives these records, as a table: a backfill reads them in parallel."""
    _spans.append(spans)
    try:
        yield
    finally:
        _spans.pop()


def reads_ranges() -> bool:
    """Whether `stream` gives a table now."""
    return bool(_spans)


def stream(**options: str) -> "DataFrame":
    """A stream of records from the earliest on; where it goes on is in the checkpoint of its flow."""
    if _spans:
        return _ranges(_spans[-1], options)
    given = {**connection_options(), "startingOffsets": "earliest", **options}
    return session().readStream.format("penstock").options(**given).load()


def _ranges(spans: Spans, options: Mapping[str, str]) -> "DataFrame":
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), (first, end) in sorted(spans.items()):
        assigned.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = first
        ends.setdefault(topic, {})[str(partition)] = end
    given = {
        name: value
        for name, value in options.items()
        if name.lower() not in _OF_STREAMS and not name.lower().startswith("starting")
    }
    places = {"assign": assigned, "startingOffsets": starts, "endingOffsets": ends}
    given |= {name: json.dumps(place) for name, place in places.items()}
    return session().read.format("penstock").options(**connection_options(), **given).load()
