"""Records over the HTTP API, as `penstock cat` and `penstock sub --protocol http` read them.

All partitions of one or more topics, with every field that a record has. Prints nothing.
"""

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from penstock.cli.http import Api, ApiNotFound, segment
from penstock.cli.output import Record
from penstock.cli.places import Place
from penstock.cli.topic import find_topic

# One page: quick to answer, and few enough calls.
PAGE_RECORDS: Final = 5_000
PAGE_BYTES: Final = 4 * 1024 * 1024
# Between two looks for new records: longer after each that found none, up to what a person calls at once.
LOOK_AGAIN_S: Final = 0.05
LOOK_AGAIN_MOST_S: Final = 0.5
PATTERN_CHARACTERS: Final = frozenset("*?[")


@dataclass(slots=True)
class Cursor:
    """Where reading is in one partition. `query` names the place until an offset is known."""

    topic: str
    partition: int
    query: dict[str, Any]
    end: int

    @property
    def offset(self) -> int:
        return int(self.query.get("offset", -1))


def matching_names(api: Api, wanted: Sequence[str]) -> list[str]:
    """Names, and patterns such as 'orders.*' as the names that match; each name once."""
    found: dict[str, None] = {}
    for one in wanted:
        found.update(dict.fromkeys(_matching(api, one)))
    return list(found)


def _matching(api: Api, wanted: str) -> list[str]:
    if not PATTERN_CHARACTERS.intersection(wanted):
        return [wanted]
    names = [topic["name"] for topic in api.list("topics")]
    # A name may hold any character: one that is there is meant.
    matching = [wanted] if wanted in names else [n for n in names if fnmatchcase(n, wanted)]
    if not matching:
        text = f"no topic matches {wanted!r}; penstock topic ls shows all"
        raise ApiNotFound("", 404, "UNKNOWN_TOPIC", text)
    return matching


def find_topics(api: Api, wanted: Sequence[str]) -> list[Any]:
    """All of them with their partitions."""
    return [find_topic(api, name) for name in matching_names(api, wanted)]


def cursors(topics: Sequence[Any], partition: int | None, place: Place) -> list[Cursor]:
    """At the place, in each partition, or in one of each topic."""
    found = []
    for topic in topics:
        name, details = topic["name"], topic["partition_details"]
        if partition is not None:
            details = [one for one in details if one["partition"] == partition]
            if not details:
                text = (
                    f"{name} has no partition {partition}; it has {topic['partitions']}, from 0 on"
                )
                raise ApiNotFound("", 404, "UNKNOWN_PARTITION", text)
        found += [
            Cursor(name, one["partition"], _start(one, place), one["latest"]) for one in details
        ]
    return found


def read(
    api: Api, cursor: Cursor, limit: int | None = None, until_us: int | None = None
) -> Iterator[list[Record]]:
    """Pages from the cursor, which moves, to its end: at most `limit` records, all before `until_us`."""
    while limit is None or limit > 0:
        most = PAGE_RECORDS if limit is None else min(limit, PAGE_RECORDS)
        answer = api.get(
            f"/topics/{segment(cursor.topic)}/records",
            partition=cursor.partition,
            max_bytes=PAGE_BYTES,
            limit=most,
            **cursor.query,
        )
        found = [_record(cursor.topic, one) for one in answer["records"]]
        found = [record for record in found if (record.offset or 0) < cursor.end]
        late = _first_from(found, until_us)
        if found[:late]:
            yield found[:late]
        if limit is not None:
            limit -= len(found[:late])
        # What came behind the end that was looked up is left for the next look, not passed over.
        following = min(answer["next_offset"], cursor.end)
        before, cursor.query = cursor.offset, {"offset": max(following, cursor.offset)}
        if late is not None or following >= cursor.end or following <= before:
            return


def _first_from(records: list[Record], time_us: int | None) -> int | None:
    """The index of the first record of that time or later, None if there is none."""
    if time_us is None:
        return None
    late = (n for n, record in enumerate(records) if (record.timestamp_us or 0) >= time_us)
    return next(late, None)


def follow(
    api: Api,
    names: Sequence[str],
    wanted: list[Cursor],
    idle_s: float | None,
    sleep: Callable[[float], object] = time.sleep,
    clock_s: Callable[[], float] = time.monotonic,
) -> Iterator[list[Record]]:
    """Yields the records from the cursors on, then new ones; ends when none came for `idle_s`.

    One question tells of all partitions of a topic, so that a quiet topic costs little.
    """
    pause_s = LOOK_AGAIN_S
    heard_s = clock_s()
    while True:
        quiet = True
        for cursor in wanted:
            for page in read(api, cursor):
                quiet = False
                yield page
        if not quiet:
            pause_s, heard_s = LOOK_AGAIN_S, clock_s()
        elif idle_s is not None and clock_s() - heard_s >= idle_s:
            return
        sleep(pause_s if idle_s is None else min(pause_s, idle_s))
        pause_s = min(2 * pause_s, LOOK_AGAIN_MOST_S)
        _look(api, names, wanted)


def _look(api: Api, names: Sequence[str], wanted: list[Cursor]) -> None:
    """The ends as they are now. A topic that is gone is an error, which says so."""
    for name in names:
        details = find_topic(api, name)["partition_details"]
        ends = {one["partition"]: one["latest"] for one in details}
        for cursor in wanted:
            if cursor.topic == name:
                cursor.end = ends.get(cursor.partition, cursor.end)


def _start(detail: Any, place: Place) -> dict[str, Any]:
    if place.word == "latest":
        return {"offset": detail["latest"]}
    if place.word is not None:
        return {"from": place.word}
    if place.time_us is not None:
        return {"time_us": place.time_us}
    if place.last is not None:
        return {"offset": max(detail["earliest"], detail["latest"] - place.last)}
    return {"offset": place.offset}


def end_at(cursor: Cursor, place: Place) -> None:
    """Reading ends before an offset, or before the last N. A time is looked for while reading."""
    if place.word == "earliest":
        cursor.end = 0
    elif place.offset is not None:
        cursor.end = min(cursor.end, place.offset)
    elif place.last is not None:
        cursor.end = max(0, cursor.end - place.last)


def _record(topic: str, fields: Any) -> Record:
    key, value = fields["key"], fields["value"]
    return Record(
        topic,
        None if value is None else base64.b64decode(value),
        fields["partition"],
        fields["offset"],
        fields["timestamp_us"],
        None if key is None else base64.b64decode(key),
        [(name, base64.b64decode(value)) for name, value in fields["headers"]],
    )
