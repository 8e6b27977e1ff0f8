"""The offsets of a streaming query, as they stand in its checkpoint, and what a new batch may read. Pure.

    {"version": 1, "query": "3f0c9a1b5d2e",
     "topics": {"orders": {"created_us": 1731700000000000, "partitions": {"0": 17, "1": 4}}}}

`query` is made up once, when the query begins: it names the consumer group that shows its lag. The end of
the first batch also has `began`, the topics where that batch starts. Spark notes no start of it: done again
after a crash it would begin where "latest" is by then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.spark.positions import DataLost, States
from penstock.spark.ranges import Range, share

VERSION: Final = 1


class NotOurOffset(PenstockError):
    """A checkpoint that this source has not written."""

    found: object

    def __str__(self) -> str:
        shown = str(self.found)[:80]
        return f"the checkpoint holds no offsets of Penstock: {shown}; give the query a new one"


@dataclass(frozen=True, slots=True)
class TopicProgress:
    created_us: int
    partitions: dict[int, int]


@dataclass(frozen=True, slots=True)
class Progress:
    """Per partition the next offset to read."""

    query: str
    topics: dict[str, TopicProgress]
    began: dict[str, TopicProgress] | None = None

    def to_json(self) -> dict[str, Any]:
        """Spark compares texts: the same progress is always the same text."""
        found = {"version": VERSION, "query": self.query, "topics": _to_json(self.topics)}
        return found if self.began is None else {**found, "began": _to_json(self.began)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Progress":
        """Raises NotOurOffset."""
        try:
            if found["version"] != VERSION:
                raise NotOurOffset(found)
            began = _from_json(found["began"]) if "began" in found else None
            return cls(str(found["query"]), _from_json(found["topics"]), began)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NotOurOffset(found) from None


def _to_json(topics: Mapping[str, TopicProgress]) -> dict[str, Any]:
    return {
        topic: {
            "created_us": one.created_us,
            "partitions": {str(key): one.partitions[key] for key in sorted(one.partitions)},
        }
        for topic, one in sorted(topics.items())
    }


def _from_json(found: Mapping[str, Any]) -> dict[str, TopicProgress]:
    return {
        topic: TopicProgress(
            int(one["created_us"]),
            {int(key): int(value) for key, value in one["partitions"].items()},
        )
        for topic, one in found.items()
    }


def at_end(query: str, states: States) -> Progress:
    """Everything that is there is read."""
    return Progress(
        query,
        {topic: TopicProgress(one.created_us, one.latest) for topic, one in states.items()},
    )


def not_behind(progress: Progress, bound: Progress) -> Progress:
    """The progress, but not past the bound; what the bound does not know is left out."""
    topics: dict[str, TopicProgress] = {}
    for topic, one in progress.topics.items():
        limit = bound.topics.get(topic)
        if limit is None:
            continue
        if limit.created_us != one.created_us:
            topics[topic] = one
            continue
        known = {key: value for key, value in one.partitions.items() if key in limit.partitions}
        topics[topic] = TopicProgress(
            one.created_us,
            {key: min(value, limit.partitions[key]) for key, value in known.items()},
        )
    return Progress(progress.query, topics)


def check_start(start: Progress, states: States, selected: str, fail_on_data_loss: bool) -> None:
    """Raises DataLost when something that the query has not read yet cannot be read any more."""
    if not fail_on_data_loss:
        return
    for topic, one in start.topics.items():
        state = states.get(topic)
        if state is None:
            raise DataLost(f"the checkpoint is at topic {topic!r}, which {selected} does not find")
        if state.created_us != one.created_us:
            raise DataLost(f"topic {topic!r} was deleted and made anew since the last batch")
        for partition, offset in one.partitions.items():
            place = f"partition {partition} of topic {topic!r}"
            if partition not in state.bounds:
                raise DataLost(f"the checkpoint is at {place}, which {selected} does not read")
            earliest, latest = state.bounds[partition]
            if not earliest <= offset <= latest:
                there = f"{place} has offsets {earliest} to {latest}"
                raise DataLost(f"the query is at offset {offset}, but {there}")


def ranges_between(
    start: Progress, end: Progress, states: States, fail_on_data_loss: bool
) -> list[Range]:
    """The ranges that a batch reads, in the order of topic and partition.

    Partitions that `start` does not know begin with their earliest record, and so do those of a topic
    made anew. What was trimmed meanwhile is left out, unless it is to fail: then the range has it, and
    the read finds it missing. Raises DataLost.
    """
    found: list[Range] = []
    for topic, one in sorted(end.topics.items()):
        before = start.topics.get(topic)
        known = before.partitions if before and before.created_us == one.created_us else {}
        state = states.get(topic)
        if state is None or state.created_us != one.created_us:
            if one.partitions != known and fail_on_data_loss:
                raise DataLost(f"topic {topic!r} was deleted before this batch could be read")
            continue
        for partition, last in sorted(one.partitions.items()):
            first = known.get(partition)
            if first is None:
                # Nothing of it was read: the earliest record that is kept now.
                first = min(state.earliest.get(partition, 0), last)
                if first > 0 and fail_on_data_loss and before is not None:
                    place = f"new partition {partition} of topic {topic!r}"
                    raise DataLost(f"{place} begins at offset {first}, not 0")
            elif not fail_on_data_loss and first < last:
                first = min(max(first, state.earliest.get(partition, 0)), last)
            if first < last:
                found.append(
                    Range(topic, partition, first, last, one.created_us, state.record_bytes)
                )
    return found


def limited(start: Progress, latest: Progress, states: States, limit: int) -> Progress:
    """The offsets `limit` records behind `start`; each partition gets a share by what waits in it.

    Whose turn it is follows from how far all of them are together: each batch moves that on by the limit.
    """
    begins = {
        (topic, partition): offset
        for topic, one in sorted(latest.topics.items())
        for partition, offset in sorted(one.partitions.items())
    }
    sizes = dict.fromkeys(begins, 0)
    for found in ranges_between(start, latest, states, False):
        place = found.topic, found.partition
        begins[place] = found.start
        sizes[place] = len(found)
    shares = share(limit, sizes, turn=sum(begins.values()))
    topics: dict[str, TopicProgress] = {}
    for topic, one in latest.topics.items():
        partitions = {
            partition: begins[topic, partition] + shares[topic, partition]
            for partition in one.partitions
        }
        topics[topic] = TopicProgress(one.created_us, partitions)
    return Progress(latest.query, topics)


def waiting(start: Progress, latest: Progress, states: States) -> int:
    return sum(len(one) for one in ranges_between(start, latest, states, False))
