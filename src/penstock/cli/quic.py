"""`penstock pub` and `penstock sub` over Felix and Fujin.

Felix: a topic is tenant/namespace/stream; the key is the token; reads what is published from now on. Fujin
has no login; a name may be a route of the server, and messages are acknowledged after they were written.
"""

import asyncio
import shlex
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import typer

from penstock.cli.outbox import (
    PARTITION_NEEDS_RUSTLOG,
    Extras,
    Outbox,
    require_plain,
)
from penstock.cli.output import TOLD_BY_FELIX, TOLD_BY_FUJIN, Record, formatter, standard_output
from penstock.cli.sub import Wanted, next_item
from penstock.cli.target import Target

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.client.felix import Batch
    from penstock.client.tally import Tally

FROM_NOW_ON: Final = "--from and --partition need --protocol rustlog, flymq or http"


class FelixOutbox:
    """`client` is a blocking Felix client. Each `send` waits for the acknowledgements."""

    def __init__(self, client: Any, stream: str) -> None:
        self._client = client
        self._stream = stream

    @property
    def tally(self) -> "Tally":
        tally: Tally = self._client.tally
        return tally

    def send(self, values: list[bytes]) -> None:
        self._client.publish_many(self._stream, values)

    def look(self) -> None:
        """Nothing waits."""

    def confirm(self) -> None:
        """Nothing waits."""


class FujinOutbox(FelixOutbox):
    """`writer` is the blocking form of one. Each `send` waits for the results."""

    def __init__(self, client: Any, writer: Any, topic: str, extras: Extras) -> None:
        super().__init__(client, topic)
        self._writer = writer
        self._headers = extras.headers

    def send(self, values: list[bytes]) -> None:
        from penstock.client.errors import NotFound

        try:
            self._writer.write_many(self._stream, values, self._headers)
        except NotFound as error:
            error.add_note(f"penstock topic create {shlex.quote(self._stream)} makes it")
            raise


def _require_plain(extras: Extras) -> None:
    require_plain(extras)
    if extras.partition is not None:
        raise typer.BadParameter(PARTITION_NEEDS_RUSTLOG)


def _named_stream(text: str, kind: str = "stream") -> str:
    from penstock.wire.felix.requests import parse_names

    try:
        return str(parse_names(text, kind))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def open_felix(target: Target, topic: str, qos: int, extras: Extras) -> Iterator[Outbox]:
    """Felix has no QoS: what is confirmed is on disk."""
    from penstock.client.felix import connect_felix

    _require_plain(extras)
    target.require_no_user("Felix")
    stream = _named_stream(topic)
    options = target.quic_options()
    with connect_felix(target.quic_server, token=target.login_key, **options) as client:
        yield FelixOutbox(client, stream)


@contextmanager
def open_fujin(target: Target, topic: str, qos: int, extras: Extras) -> Iterator[Outbox]:
    """Fujin has no QoS: what is confirmed is on disk."""
    from penstock.client.fujin import connect_fujin

    _require_plain(replace(extras, headers=()))
    target.require_no_key("Fujin")
    target.require_no_user("Fujin")
    with (
        connect_fujin(target.quic_server, **target.quic_options()) as client,
        client.writer() as writer,
    ):
        yield FujinOutbox(client, writer, topic, extras)


def follow_felix(target: Target, wanted: Wanted) -> Coroutine[Any, Any, None]:
    _require_followable(target, wanted, "Felix")
    return _follow_felix(target, wanted, _named_stream(wanted.topic))


def follow_fujin(target: Target, wanted: Wanted) -> Coroutine[Any, Any, None]:
    _require_followable(target, wanted, "Fujin")
    target.require_no_key("Fujin")
    return _follow_fujin(target, wanted)


def _require_followable(target: Target, wanted: Wanted, protocol: str) -> None:
    if wanted.group is not None:
        raise typer.BadParameter(
            "--group needs --protocol rustlog or flymq; groups of Fujin are routes of the server"
        )
    if wanted.start is not None or wanted.partition is not None:
        raise typer.BadParameter(FROM_NOW_ON)
    target.require_no_user(protocol)


async def _follow_felix(target: Target, wanted: Wanted, stream: str) -> None:
    from penstock.client.felix import EventMissed, FelixClient

    write_as = formatter(wanted.as_json, wanted.template, TOLD_BY_FELIX, wanted.decode)
    output = standard_output()
    options = target.quic_options(attempts=None)
    async with FelixClient(target.quic_server, token=target.login_key, **options) as client:
        subscription = await client.subscribe(stream)
        typer.echo(f"subscribed to {stream} with Felix; Ctrl-C ends", err=True)
        left = wanted.count
        batches: AsyncGenerator[Batch, None] = subscription.batches(limit=left)
        while True:
            try:
                batch = await next_item(batches, wanted.idle_s)
            except EventMissed as missed:
                typer.echo(str(missed), err=True)
                batches = subscription.batches(limit=left)
                continue
            if batch is None:
                break
            left = None if left is None else left - len(batch)
            output.write(b"".join(write_as(Record(stream, value)) for value in batch.values))
            output.flush()
        await batches.aclose()


async def _follow_fujin(target: Target, wanted: Wanted) -> None:
    from penstock.client.errors import PASSING
    from penstock.client.fujin import FujinClient

    write_as = formatter(wanted.as_json, wanted.template, TOLD_BY_FUJIN, wanted.decode)
    output = standard_output()
    topic = wanted.topic
    async with FujinClient(target.quic_server, **target.quic_options(attempts=None)) as client:
        subscription = await client.subscribe(topic, auto_commit=False)
        typer.echo(f"subscribed to {topic} with Fujin; Ctrl-C ends", err=True)
        batches = subscription.batches(limit=wanted.count)
        while (batch := await next_item(batches, wanted.idle_s)) is not None:
            output.write(b"".join(write_as(Record(topic, value)) for value in batch.values))
            output.flush()
            try:
                await subscription.ack(batch)
            except PASSING:
                continue  # they come again, to this reader or another one of its group
        await batches.aclose()


# ---- the cache ----


def cached(target: Target, key: str, cache: str | None) -> bytes | None:
    """The value; None if there is none."""
    from penstock.client.felix import FelixClient

    async def get() -> bytes | None:
        async with FelixClient(
            target.quic_server, token=target.login_key, **target.quic_options()
        ) as client:
            return await client.cache_get(key, cache=cache)

    return asyncio.run(get())


def put_cached(
    target: Target, key: str, value: bytes, ttl_s: float | None, cache: str | None
) -> None:
    from penstock.client.felix import FelixClient

    async def put() -> None:
        async with FelixClient(
            target.quic_server, token=target.login_key, **target.quic_options()
        ) as client:
            await client.cache_put(key, value, ttl_s=ttl_s, cache=cache)

    asyncio.run(put())


def checked_cache(target: Target, cache: str | None) -> str | None:
    target.require_no_user("Felix")
    return None if cache is None else _named_stream(cache, "cache")
