"""`penstock sub TOPIC`: print messages as they come, until Ctrl-C, -n messages, or --idle.

BlipMQ: what is published from now on, each acknowledged after it was written; the protocol itself makes a
topic that is not there, so the HTTP API is asked for the topic first. RustLog: one partition,
from the end, from a place, or from where a group is; with --group the group moves on behind what was
written. FlyMQ: the same with all partitions (flymq.py). Felix and Fujin: quic.py. All go on after a lost
connection and say so on stderr. HTTP: all partitions of any number of topics, with all that a record has.
What is there already: `penstock cat`.
"""

import shlex
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from penstock.cli.output import (
    TOLD_BY_BLIPMQ,
    TOLD_BY_HTTP,
    TOLD_BY_RUSTLOG,
    Formatter,
    Record,
    formatter,
    standard_output,
)
from penstock.cli.places import PLACES_HELP, Place, parse_place
from penstock.cli.pub import Qos
from penstock.cli.target import Target, with_target
from penstock.errors import PenstockError
from penstock.server.protocols import PROTOCOLS, row_of

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.client.rustlog import RustLogClient

Item = TypeVar("Item")


HTTP: Final = "http"
GROUP_NEEDS_RUSTLOG: Final = "--group needs --protocol rustlog or flymq"

if TYPE_CHECKING:
    Source = str
else:
    Source = StrEnum(
        "Source",
        {name: name for name in (*(row.name for row in PROTOCOLS if row.subscriber), HTTP)},
    )

Decode = Annotated[
    bool, typer.Option("--decode", help="Show values as JSON, by the schema of the topic.")
]
Schema = Annotated[
    str | None,
    typer.Option(metavar="NAME[:VERSION]", help="Decode by this schema, whatever the topic has."),
]
DEFAULT_SOURCE: Final = Source(PROTOCOLS[0].name)


class TopicNotAsked(PenstockError):
    """A SUBSCRIBE would create a missing topic, and whether it exists cannot be checked."""

    def __init__(self, topic: str, server: str, reason: str) -> None:
        super().__init__(topic, server, reason)
        self.topic = topic
        self.server = server
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"whether {self.server} has a topic {self.topic!r} cannot be asked: {self.reason};"
            " --create asks nobody, and makes it if it is not there"
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a subscriber asked for; a protocol refuses what it does not have."""

    topic: str
    qos: int
    partition: int | None
    group: str | None
    start: str | None
    count: int | None
    idle_s: float | None
    as_json: bool
    template: str | None
    create: bool
    decode: Callable[[Record], Record] | None = None


Follow = Callable[[Target, Wanted], Coroutine[Any, Any, None]]


def register(app: typer.Typer) -> None:
    app.command("sub")(with_target(subscribe))


def subscribe(
    target: Target,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="One name; with HTTP several, and patterns."),
    ],
    protocol: Annotated[
        Source, typer.Option("--protocol", help="How to read; http tells most.")
    ] = DEFAULT_SOURCE,
    qos: Qos = 1,
    partition: Annotated[
        int | None,
        typer.Option(
            "-p", "--partition", min=0, help="RustLog: which one, 0. FlyMQ, HTTP: only this."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option("-g", "--group", help="RustLog, FlyMQ: read as this group.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help=f"RustLog, FlyMQ, HTTP: {PLACES_HELP}"),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="BlipMQ: make the topic if it is not there.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End after so many messages.")
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, help="End when nothing came for so long."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    template: Annotated[
        str | None, typer.Option("--format", help=r"Such as '%o %v\n'; %t %p %o %T %k %v %S %h.")
    ] = None,
    decode: Decode = False,
    schema: Schema = None,
) -> None:
    """Print messages as they come."""
    import uvloop

    if create and protocol != DEFAULT_SOURCE:
        raise typer.BadParameter(f"--create needs --protocol {DEFAULT_SOURCE}")
    if protocol == HTTP:
        if group is not None:
            raise typer.BadParameter(GROUP_NEEDS_RUSTLOG)
        decoder = make_decoder(target, decode, schema)
        write_as = formatter(as_json, template, TOLD_BY_HTTP, decoder)
        place = parse_place(start or "latest", "--from")
        _http(target, topics, partition, place, count, idle, write_as)
        return
    if len(topics) > 1:
        raise typer.BadParameter("several topics need --protocol http")
    (topic,) = topics
    decoder = make_decoder(target, decode, schema, topic)
    wanted = Wanted(
        topic, qos, partition, group, start, count, idle, as_json, template, create, decoder
    )
    follow: Follow = resolve_name(row_of(protocol).subscriber)
    work = follow(target, wanted)
    try:
        uvloop.run(_with_advice(work, topic))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def make_decoder(
    target: Target, decode: bool, schema: str | None, topic: str | None = None
) -> Callable[[Record], Record] | None:
    """None where no decoding was asked for. `topic`: its schema is looked up at once."""
    if not decode and schema is None:
        return None
    from penstock.cli.decoding import Decoder

    if not target.same_server:
        raise typer.BadParameter("--decode asks the HTTP API of the server: give --http too")
    decoder = Decoder(target.api(), schema)
    if topic is not None:
        decoder.prepare(topic)
    return decoder


async def _with_advice(work: Coroutine[Any, Any, None], topic: str) -> None:
    """A topic that is not there is an error that tells how to make it: reading never does."""
    from penstock.client.errors import NotFound

    try:
        await work
    except NotFound as error:
        if "partition" not in error.text:
            error.add_note(f"penstock topic create {shlex.quote(topic)} makes it")
        raise


def _http(
    target: Target,
    topics: Sequence[str],
    partition: int | None,
    place: Place,
    count: int | None,
    idle_s: float | None,
    write_as: Formatter,
) -> None:
    from penstock.cli.records import cursors, find_topics, follow

    api = target.api()
    found = find_topics(api, topics)
    names = [topic["name"] for topic in found]
    output = standard_output()
    left = count
    wanted = cursors(found, partition, place)
    typer.echo(f"reading {', '.join(names)}, {len(wanted)} partition(s); Ctrl-C ends", err=True)
    for page in follow(api, names, wanted, idle_s):
        output.write(b"".join(map(write_as, page[:left])))
        output.flush()
        if left is not None:
            left -= min(left, len(page))
            if left == 0:
                return


def follow_blipmq(target: Target, wanted: Wanted) -> Coroutine[Any, Any, None]:
    write_as = formatter(wanted.as_json, wanted.template, TOLD_BY_BLIPMQ, wanted.decode)
    if wanted.group is not None:
        raise typer.BadParameter(GROUP_NEEDS_RUSTLOG)
    if wanted.start is not None or wanted.partition is not None:
        raise typer.BadParameter("--from and --partition need --protocol rustlog, flymq or http")
    target.require_no_user("BlipMQ")
    return _blipmq(target, wanted, write_as)


def follow_rustlog(target: Target, wanted: Wanted) -> Coroutine[Any, Any, None]:
    write_as = formatter(wanted.as_json, wanted.template, TOLD_BY_RUSTLOG, wanted.decode)
    target.require_no_key("RustLog")
    target.require_no_user("RustLog")
    start = wanted.start
    place = Place() if start is None else parse_place(start, "--from")
    if place.time_us is not None or place.last is not None:
        raise typer.BadParameter(
            f"--from {start}: RustLog has earliest, latest and offsets, --protocol http has all"
        )
    return _rustlog(
        target,
        wanted.topic,
        wanted.partition or 0,
        wanted.group,
        place,
        wanted.count,
        wanted.idle_s,
        write_as,
    )


async def _blipmq(target: Target, wanted: Wanted, write_as: Formatter) -> None:
    import asyncio

    from penstock.client.blipmq import BlipMQClient

    settings = target.settings(attempts=None)
    output = standard_output()
    topic, qos = wanted.topic, wanted.qos
    # Connected first, so that a failed login or an unreachable server is the error that is shown.
    async with BlipMQClient(target.server, key=target.login_key, settings=settings) as client:
        if not wanted.create:
            await asyncio.to_thread(_require_topic, target, topic)
        subscription = await client.subscribe(topic, qos, auto_ack=False)
        typer.echo(f"subscribed to {topic} with QoS {qos}; Ctrl-C ends", err=True)
        batches = subscription.batches(limit=wanted.count)
        while (batch := await next_item(batches, wanted.idle_s)) is not None:
            output.write(b"".join(write_as(Record(topic, value)) for value in batch.values))
            output.flush()
            subscription.ack(batch)
        await batches.aclose()


def _require_topic(target: Target, topic: str) -> None:
    """Raises ApiNotFound with the nearest name, or TopicNotAsked where that cannot be checked."""
    from penstock.cli.http import ApiNotAuthorized, ApiNotFound, CannotConnect, NotOurServer
    from penstock.cli.topic import find_topic

    if not target.same_server:
        raise TopicNotAsked(topic, target.server, "--http is not given")
    try:
        find_topic(target.api(), topic)
    except ApiNotFound as error:
        error.add_note(f"so says {target.http}; --create makes it")
        raise
    except ApiNotAuthorized:
        return  # without the right to see the topic a SUBSCRIBE is refused too: the server reports that
    except (CannotConnect, NotOurServer) as error:
        raise TopicNotAsked(topic, target.server, str(error)) from None


async def _rustlog(
    target: Target,
    topic: str,
    partition: int,
    group: str | None,
    place: Place,
    count: int | None,
    idle_s: float | None,
    write_as: Formatter,
) -> None:
    from penstock.client.rustlog import RustLogClient

    output = standard_output()
    left = count
    async with RustLogClient(target.server, settings=target.settings(attempts=None)) as client:
        offset = await _start(client, topic, partition, group, place)
        typer.echo(f"reading {topic}/{partition} from offset {offset}; Ctrl-C ends", err=True)
        batches = client.consume(topic, partition, offset=offset)
        while (batch := await next_item(batches, idle_s)) is not None:
            pairs = list(zip(batch.offsets, batch.values, strict=True))[:left]
            records = (Record(topic, value, partition, number) for number, value in pairs)
            output.write(b"".join(map(write_as, records)))
            output.flush()
            if group:
                await client.commit(topic, partition, group, pairs[-1][0] + 1, patient=True)
            left = None if left is None else left - len(pairs)
            if left == 0:
                break
        await batches.aclose()


async def _start(
    client: "RustLogClient", topic: str, partition: int, group: str | None, place: Place
) -> int:
    """The place that was asked for; else the group's; else the end."""
    if place.offset is not None:
        return place.offset
    if place.word == "earliest":
        return 0
    if place.word is None and group:
        committed = await client.committed(topic, partition, group)
        if committed is not None:
            return committed
    return await client.end_offset(topic, partition)


async def next_item(items: AsyncGenerator[Item, None], idle_s: float | None) -> Item | None:
    """The next one; None at the end, or when none came for so long."""
    import asyncio

    try:
        async with asyncio.timeout(idle_s):
            return await anext(items)
    except (StopAsyncIteration, TimeoutError):
        return None
