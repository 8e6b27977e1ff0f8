"""`penstock pub TOPIC [MESSAGE]`: publish one message, lines of a file or of stdin, or all of it.

Ends with 0 only when the server has every message on disk: with BlipMQ by a PONG behind the last one,
with RustLog by the offsets. Blocks while it reads, so that Ctrl-C works at any time.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, BinaryIO, Final

import typer

from penstock.cli.target import Target, with_target
from penstock.errors import PenstockError

# What one read takes of the input; `read1` gives less when less is there, so nothing waits.
READ_BYTES: Final = 1024 * 1024
# Repeated messages go out in pieces of so many.
REPEATED: Final = 1_000
# Between two confirmations: large enough not to matter, small enough that each comes in time.
FLUSH_BYTES: Final = 4 * 1024 * 1024
# One RustLog request: a byte takes up to four characters, and a frame holds 10 MiB.
REQUEST_BYTES: Final = 1024 * 1024
REQUEST_RECORDS: Final = 5_000
# No protocol has room for a longer message (BlipMQ: 16 MiB).
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024

Send = Callable[[list[bytes]], None]


class Wire(StrEnum):
    blipmq = "blipmq"
    rustlog = "rustlog"


Protocol = Annotated[Wire, typer.Option("--protocol", help="Which wire protocol.")]
Qos = Annotated[int, typer.Option("--qos", min=0, max=1, help="0 at most, 1 at least once.")]
Partition = Annotated[int, typer.Option("-p", "--partition", min=0, help="RustLog: which one.")]


class MessageTooLong(PenstockError):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"message {self.number} is longer than {MAX_MESSAGE_BYTES} bytes, no frame holds it"


def register(app: typer.Typer) -> None:
    app.command("pub")(with_target(publish))


def publish(
    target: Target,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    message: Annotated[
        str | None, typer.Argument(help="The message; without it, or -, each line of stdin is one.")
    ] = None,
    protocol: Protocol = Wire.blipmq,
    qos: Qos = 1,
    partition: Partition = 0,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Repeat MESSAGE.")] = 1,
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="Read this instead of stdin.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="The input is one message, not lines.")
    ] = False,
) -> None:
    """Publish, and end when the server has taken all."""
    given = message is not None and message != "-"
    if given and (file is not None or raw):
        raise typer.BadParameter("give MESSAGE or input from --file, --raw or stdin, not both")
    if count > 1 and not given:
        raise typer.BadParameter("--count repeats MESSAGE, and there is none")
    text = (message or "").encode("utf-8", "surrogateescape")
    with _input(None if given else file or "-") as stream:
        read = whole if raw else lines
        chunks = repeated(text, count) if stream is None else read(stream)
        published = _publish_all(target, topic, protocol, qos, partition, chunks, count)
    if sys.stderr.isatty():
        typer.echo(f"published {published} to {topic}", err=True)


def _publish_all(
    target: Target,
    topic: str,
    protocol: Wire,
    qos: int,
    partition: int,
    chunks: Iterator[list[bytes]],
    count: int,
) -> int:
    """How many messages there were; the server has taken each of them."""
    opened = (
        blipmq_sender(target, topic, qos)
        if protocol is Wire.blipmq
        else rustlog_sender(target, topic, partition)
    )
    published = 0
    try:
        with opened as send, _progress(count) as advance:
            for chunk in chunks:
                send(chunk)
                published += len(chunk)
                advance(len(chunk))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return published


# ---- senders ----


@contextmanager
def blipmq_sender(target: Target, topic: str, qos: int) -> Iterator[Send]:
    from penstock.client.blipmq import connect_blipmq
    from penstock.client.errors import NotAuthorized, PublishRefused

    unconfirmed = 0

    def send(values: list[bytes]) -> None:
        nonlocal unconfirmed
        client.publish_many(topic, values, qos)
        unconfirmed += sum(map(len, values))
        if unconfirmed >= FLUSH_BYTES:
            client.flush()
            unconfirmed = 0

    try:
        # Leaving the block flushes, and raises what was refused.
        with connect_blipmq(target.server, key=target.key, settings=target.settings()) as client:
            yield send
    except PublishRefused as error:
        if error.not_authorized:
            first = error.refusals[0]
            raise NotAuthorized(first.code, first.text, f"PUBLISH to {topic}") from None
        raise


@contextmanager
def rustlog_sender(target: Target, topic: str, partition: int) -> Iterator[Send]:
    from penstock.cli.topic import suggestion
    from penstock.client.errors import ClientError, NotFound
    from penstock.client.rustlog import connect_rustlog

    def send(values: list[bytes]) -> None:
        client.produce_many(topic, partition, requests(values))

    with connect_rustlog(target.server, settings=target.settings()) as client:
        try:
            yield send
        except NotFound as error:
            try:
                names = list(client.list_topics())
            except ClientError:
                # Not every server has this extension; the error is good enough without.
                raise error from None
            if topic in names:
                raise
            text = f"{error.text}; {suggestion(topic, names)}"
            raise NotFound(error.code, text, error.what) from None


def requests(values: list[bytes]) -> Iterator[list[bytes]]:
    """Pieces that fit one request each, if their records do at all."""
    piece: list[bytes] = []
    size = 0
    for value in values:
        if piece and (len(piece) == REQUEST_RECORDS or size + len(value) > REQUEST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(value)
        size += len(value)
    if piece:
        yield piece


# ---- input ----


@contextmanager
def _input(name: str | None) -> Iterator[BinaryIO | None]:
    if name is None:
        yield None
    elif name == "-":
        if sys.stdin.isatty():
            typer.echo("each line is a message; Ctrl-D ends", err=True)
        yield sys.stdin.buffer
    else:
        with open(name, "rb") as file:
            yield file


def repeated(message: bytes, count: int) -> Iterator[list[bytes]]:
    step = max(1, min(REPEATED, FLUSH_BYTES // max(1, len(message))))
    for done in range(0, count, step):
        yield [message] * min(step, count - done)


def lines(stream: Any) -> Iterator[list[bytes]]:
    """The lines as they arrive, without their \\n. A last line without one counts, if it is not empty."""
    rest = b""
    number = 0
    while chunk := stream.read1(READ_BYTES):
        *complete, rest = (rest + chunk).split(b"\n")
        number += len(complete)
        if complete:
            yield complete
        if len(rest) > MAX_MESSAGE_BYTES:
            raise MessageTooLong(number + 1)
    if rest:
        yield [rest]


def whole(stream: BinaryIO) -> Iterator[list[bytes]]:
    message = stream.read(MAX_MESSAGE_BYTES + 1)
    if len(message) > MAX_MESSAGE_BYTES:
        raise MessageTooLong(1)
    yield [message]


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int], None]]:
    """A bar with the rate, on a terminal only, and not for a single message."""
    if not sys.stderr.isatty() or (count == 1 and sys.stdin.isatty()):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]} messages/s"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=count if count > 1 else None, rate="-")

        def advance(done: int) -> None:
            progress.advance(task, done)
            speed = progress.tasks[0].speed
            progress.update(task, rate="-" if speed is None else f"{speed:,.0f}")

        yield advance
