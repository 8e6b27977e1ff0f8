"""Where reading begins and ends: from options to offsets of the topics that are there now.

Asks the server; decides nothing about tasks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.client.errors import NotFound
from penstock.errors import PenstockError
from penstock.spark.options import (
    EARLIEST,
    LATEST,
    MAX_OFFSET,
    OptionError,
    Position,
    ReadOptions,
    Selection,
)

if TYPE_CHECKING:
    from penstock.client.flight import FlightClient


class DataLost(PenstockError):
    """Records that were asked for are not there any more, or never were."""

    what: str

    line = "{what}; with option failOnDataLoss false reading goes on with what is there"


@dataclass(frozen=True, slots=True)
class TopicState:
    """The selected partitions of a topic: the first offset kept, and the one behind the last.

    `record_bytes` is the average of all its records. `servers`: who serves it, see spreading.py.
    """

    created_us: int
    bounds: dict[int, tuple[int, int]]
    record_bytes: int = 0
    servers: tuple[str, ...] = ()

    @property
    def earliest(self) -> dict[int, int]:
        return {partition: bounds[0] for partition, bounds in self.bounds.items()}

    @property
    def latest(self) -> dict[int, int]:
        return {partition: bounds[1] for partition, bounds in self.bounds.items()}


States = dict[str, TopicState]
Offsets = dict[str, dict[int, int]]


def look(client: "FlightClient", selection: Selection, *, missing_ok: bool = False) -> States:
    """All selected topics, sorted by name. Raises NotFound for one that is named and not there."""
    chosen: dict[str, tuple[int, ...] | None]
    if selection.assigned is not None:
        chosen = dict(selection.assigned)
    elif selection.topics is not None:
        chosen = dict.fromkeys(selection.topics)
    else:
        pattern = re.compile(selection.pattern or "")
        chosen = dict.fromkeys(topic for topic in client.topics() if pattern.fullmatch(topic))
        missing_ok = True  # deleted since it was listed
    states: States = {}
    for topic in sorted(chosen):
        try:
            found = client.describe(topic)
        except NotFound:
            if missing_ok:
                continue
            raise
        numbers = chosen[topic]
        if numbers is not None and numbers[-1] >= len(found.bounds):
            text = f"topic {topic!r} has {len(found.bounds)} partitions, not {numbers[-1] + 1}"
            raise OptionError("assign", text)
        wanted = range(len(found.bounds)) if numbers is None else numbers
        bounds = {one: found.bounds[one] for one in wanted}
        states[topic] = TopicState(found.created_us, bounds, found.record_bytes, found.servers)
    return states


def named_servers(states: States) -> tuple[str, ...]:
    """Those of the last answer: the newest."""
    return next((state.servers for state in reversed(states.values())), ())


def beginning(client: "FlightClient", states: States, options: ReadOptions) -> Offsets:
    """Raises OptionError or DataLost."""
    position = options.starting
    found = _resolve(client, states, position, options)
    if position.time_ms is None and position.times_ms is None:
        return found
    for topic, offsets in found.items():
        for partition, offset in offsets.items():
            latest = states[topic].latest[partition]
            if offset >= latest and not options.latest_when_no_such_time:
                text = f"partition {partition} of {topic!r} has no record at that time or later"
                hint = "startingOffsetsByTimestampStrategy latest starts at its end"
                raise OptionError(position.option, f"{text}; {hint}")
            offsets[partition] = min(offset, latest)
    return found


def ending(client: "FlightClient", states: States, options: ReadOptions) -> Offsets:
    """Raises OptionError or DataLost. Never behind what there is now."""
    found = _resolve(client, states, options.ending, options)
    return {
        topic: {one: min(offset, states[topic].latest[one]) for one, offset in offsets.items()}
        for topic, offsets in found.items()
    }


def _resolve(
    client: "FlightClient", states: States, position: Position, options: ReadOptions
) -> Offsets:
    if position.offset == EARLIEST:
        return {topic: state.earliest for topic, state in states.items()}
    if position.offset == LATEST:
        return {topic: state.latest for topic, state in states.items()}
    if position.time_ms is not None:
        at_us = _in_us(position.time_ms)
        return {
            topic: client.offsets_at(topic, at_us, list(state.bounds))
            for topic, state in states.items()
        }
    if position.times_ms is not None:
        _check_complete(position, position.times_ms, states)
        return {
            topic: {
                one: client.offsets_at(topic, _in_us(time_ms), [one])[one]
                for one, time_ms in times.items()
            }
            for topic, times in position.times_ms.items()
        }
    given = position.offsets or {}
    _check_complete(position, given, states)
    return {
        topic: {
            one: _named(position, topic, one, offset, states[topic].bounds[one], options)
            for one, offset in offsets.items()
        }
        for topic, offsets in given.items()
    }


def _in_us(time_ms: int) -> int:
    """The broker's times have 63 bits. Whatever is later than that is later than every record."""
    return min(time_ms * 1000, MAX_OFFSET)


def _named(
    position: Position,
    topic: str,
    partition: int,
    offset: int,
    bounds: tuple[int, int],
    options: ReadOptions,
) -> int:
    earliest, latest = bounds
    if offset == EARLIEST:
        return earliest
    if offset == LATEST:
        return latest
    if not earliest <= offset <= latest and options.fail_on_data_loss:
        place = f"partition {partition} of {topic!r} has offsets {earliest} to {latest}"
        raise DataLost(f"option {position.option}: {place}, not {offset}")
    return min(max(offset, earliest), latest)


def _check_complete(
    position: Position, given: Mapping[str, Mapping[int, int]], states: States
) -> None:
    """Requires all partitions that are read, and no others, as Kafka's source does."""
    wanted = {(topic, one) for topic, state in states.items() for one in state.bounds}
    named = {(topic, one) for topic, offsets in given.items() for one in offsets}
    for difference, problem in ((wanted - named, "is missing"), (named - wanted, "is not read")):
        if difference:
            topic, one = min(difference)
            raise OptionError(position.option, f"partition {one} of {topic!r} {problem}")
