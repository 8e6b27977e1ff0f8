"""`penstock pub` and `penstock sub` over FlyMQ: messages with keys, and all partitions of a topic.

The name of the API key is not needed: our servers know a key by itself. Reads what comes from now on, from
a place, or from where a group is; with a group it commits behind what was written.
"""

from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

from penstock.cli.outbox import Extras, Outbox, require_no_headers
from penstock.cli.output import TOLD_BY_FLYMQ, Formatter, Record, formatter, standard_output
from penstock.cli.places import Place, parse_place
from penstock.cli.sub import Wanted, next_item
from penstock.cli.target import Target

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.client.flymq import FetchedBatch, FlyMQClient
    from penstock.client.tally import Tally
    from penstock.wire.flymq.messages import PartitionEnds

# Waiting when no partition has anything new: the protocol cannot hold a FETCH back.
IDLE_FIRST_S: Final = 0.002
IDLE_MOST_S: Final = 0.1


class FlyMQOutbox:
    """`client` is a blocking FlyMQ client. Each `send` waits for the answers."""

    def __init__(self, client: Any, topic: str, extras: Extras) -> None:
        self._client = client
        self._topic = topic
        self._extras = extras

    @property
    def tally(self) -> "Tally":
        tally: Tally = self._client.tally
        return tally

    def send(self, values: list[bytes]) -> None:
        extras = self._extras
        if extras.ttl_ms is not None:
            self._client.produce_with_ttl(self._topic, values, extras.ttl_ms)
            return
        if extras.delay_ms is not None:
            self._client.produce_delayed(self._topic, values, extras.delay_ms)
            return
        keys = None if extras.key is None else [extras.key] * len(values)
        self._client.produce_many(self._topic, values, keys=keys, partition=extras.partition)

    def look(self) -> None:
        """Nothing waits."""

    def confirm(self) -> None:
        """Nothing waits."""


@contextmanager
def open_outbox(target: Target, topic: str, qos: int, extras: Extras) -> Iterator[Outbox]:
    """FlyMQ has no QoS: what is confirmed is on disk."""
    from penstock.client.flymq import connect_flymq

    require_no_headers(extras)
    timed = [one for one in (extras.ttl_ms, extras.delay_ms) if one is not None]
    if len(timed) > 1:
        raise typer.BadParameter("--ttl and --delay do not go together in FlyMQ")
    if timed and (extras.key is not None or extras.partition is not None):
        name = "--delay" if extras.ttl_ms is None else "--ttl"
        raise typer.BadParameter(f"{name} goes with neither --message-key nor --partition in FlyMQ")
    with connect_flymq(
        target.server, user=target.user or "", key=target.login_key, settings=target.settings()
    ) as client:
        yield FlyMQOutbox(client, topic, extras)


def follow(target: Target, wanted: Wanted) -> Coroutine[Any, Any, None]:
    write_as = formatter(wanted.as_json, wanted.template, TOLD_BY_FLYMQ, wanted.decode)
    place = Place() if wanted.start is None else parse_place(wanted.start, "--from")
    return _follow(target, wanted, place, write_as)


async def _follow(target: Target, wanted: Wanted, place: Place, write_as: Formatter) -> None:
    from penstock.client.flymq import FlyMQClient

    output = standard_output()
    left = wanted.count
    settings = target.settings(attempts=None)
    async with FlyMQClient(
        target.server, user=target.user or "", key=target.login_key, settings=settings
    ) as client:
        positions = await _positions(client, wanted, place)
        where = ", ".join(f"{number} at {offset}" for number, offset in positions.items())
        typer.echo(f"reading {wanted.topic}, partition {where}; Ctrl-C ends", err=True)
        batches = _batches(client, wanted.topic, positions)
        while (batch := await next_item(batches, wanted.idle_s)) is not None:
            messages = batch.messages[:left]
            number = batch.partition
            output.write(
                b"".join(
                    write_as(
                        Record(wanted.topic, one.value, number, one.offset, key=one.key or None)
                    )
                    for one in messages
                )
            )
            output.flush()
            if wanted.group:
                seen = messages[-1].offset + 1
                await client.commit(wanted.topic, number, wanted.group, seen, patient=True)
            left = None if left is None else left - len(messages)
            if left == 0:
                break
        await batches.aclose()


async def _positions(client: "FlyMQClient", wanted: Wanted, place: Place) -> dict[int, int]:
    """Where to begin in each partition: the place that was asked for; else the group's; else the end."""
    from penstock.client.errors import NotFound

    found = (await client.describe_topic(wanted.topic)).partitions
    if wanted.partition is not None:
        found = [one for one in found if one.partition == wanted.partition]
        if not found:
            raise NotFound(0, f"partition {wanted.partition} not found", f"sub {wanted.topic}")
    committed: dict[int, int] = {}
    if wanted.group:
        try:
            row = await client.describe_group(wanted.group, wanted.topic)
            committed = {one.partition: one.offset for one in row.offsets}
        except NotFound:
            committed = {}  # it is made by the first commit
    return {one.partition: await _start(client, wanted, place, one, committed) for one in found}


async def _start(
    client: "FlyMQClient",
    wanted: Wanted,
    place: Place,
    ends: "PartitionEnds",
    committed: dict[int, int],
) -> int:
    if place.offset is not None:
        return place.offset
    if place.time_us is not None:
        return await client.seek_to_time(wanted.topic, ends.partition, place.time_us // 1000)
    if place.last is not None:
        return max(ends.oldest, ends.newest - place.last)
    if place.word == "earliest":
        return ends.oldest
    if place.word is None and ends.partition in committed:
        return committed[ends.partition]
    return ends.newest


async def _batches(
    client: "FlyMQClient", topic: str, positions: dict[int, int]
) -> "AsyncGenerator[FetchedBatch, None]":
    """Batches of all these partitions in turn, without end."""
    import asyncio

    idle_s = IDLE_FIRST_S
    while True:
        empty = True
        for number, offset in positions.items():
            batch = await client.fetch(topic, number, offset, patient=True)
            positions[number] = batch.next_offset
            if batch.messages:
                empty = False
                yield batch
        if empty:
            await asyncio.sleep(idle_s)
        idle_s = min(IDLE_MOST_S, 2 * idle_s) if empty else IDLE_FIRST_S
