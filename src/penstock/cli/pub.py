"""`penstock pub TOPIC [MESSAGE]`: publish one message, lines of a file or of stdin, or all of it.

Ends with 0 only when the server has every message on disk: with BlipMQ by a PONG behind the last one, with
the others by their answers. Ends early when one is refused, and says what became of the others.
Blocks while it reads, so that Ctrl-C works at any time; but not for long while something is unconfirmed.
"""

import select
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from penstock.cli.outbox import (
    CONFIRM_S,
    FLUSH_BYTES,
    Extras,
    OpenOutbox,
    Outbox,
    outcome,
)
from penstock.cli.target import Target, with_target
from penstock.errors import PenstockError
from penstock.server.protocols import PROTOCOLS, row_of

# What one read takes of the input; `read1` gives less when less is there, so nothing waits.
READ_BYTES: Final = 1024 * 1024
# Repeated messages go out in pieces of so many.
REPEATED: Final = 1_000
# No protocol has room for a longer message (BlipMQ: 16 MiB).
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024


HTTP: Final = "http"
FLYMQ: Final = "flymq"

if TYPE_CHECKING:
    Door = str
else:
    Door = StrEnum(
        "Door", {name: name for name in (*(row.name for row in PROTOCOLS if row.publisher), HTTP)}
    )

DEFAULT_PROTOCOL: Final = PROTOCOLS[0].name
Protocol = Annotated[
    Door | None,
    typer.Option(
        "--protocol",
        help=f"How to send; if not given, {DEFAULT_PROTOCOL}, or the first that has what is asked for.",
    ),
]
Qos = Annotated[int, typer.Option("--qos", min=0, max=1, help="0 at most, 1 at least once.")]
Partition = Annotated[
    int | None,
    typer.Option("-p", "--partition", min=0, help="Which one. RustLog: 0 if not given."),
]


class MessageTooLong(PenstockError):
    number: int

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
    protocol: Protocol = None,
    qos: Qos = 1,
    partition: Partition = None,
    message_key: Annotated[
        str | None,
        typer.Option(
            "-K", "--message-key", metavar="KEY", help="FlyMQ, HTTP: the key of the messages."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "-H",
            "--header",
            metavar="NAME=VALUE",
            help="HTTP, Fujin: a header of the messages; repeat for more.",
        ),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", metavar="TIME", help="FlyMQ, HTTP: deliver none later, as 30s."),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="TIME", help="FlyMQ, HTTP: deliver after it, as 5min."),
    ] = None,
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
        by_line = stream is not None and not raw
        key = None if message_key is None else message_key.encode("utf-8", "surrogateescape")
        times = _milliseconds(ttl, "--ttl"), _milliseconds(delay, "--delay")
        extras = Extras(partition, key, *times, _headers(header or []))
        opened = _outbox_of(protocol or _fitting(extras))(target, topic, qos, extras)
        published = _publish_all(opened, chunks, count, by_line)
    if sys.stderr.isatty():
        typer.echo(f"published {published} to {topic}", err=True)


def _milliseconds(text: str | None, option: str) -> int | None:
    from penstock.server.config.units import parse_time_us

    if text is None:
        return None
    try:
        return max(parse_time_us(text) // 1_000, 1)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text}: {error}") from None


def _headers(texts: list[str]) -> tuple[tuple[str, bytes], ...]:
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--header {text!r}: write NAME=VALUE")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise typer.BadParameter("--header: a name is UTF-8") from None
        found.append((name, value.encode("utf-8", "surrogateescape")))
    return tuple(found)


def _fitting(extras: Extras) -> str:
    """The way that can carry what was asked for."""
    placed = extras.key is not None or extras.partition is not None
    timed = extras.ttl_ms is not None or extras.delay_ms is not None
    if extras.headers or (placed and timed):
        return HTTP
    return FLYMQ if placed or timed else DEFAULT_PROTOCOL


def _outbox_of(protocol: str) -> OpenOutbox:
    if protocol == HTTP:
        from penstock.cli.http_outbox import open_http

        return open_http
    open_outbox: OpenOutbox = resolve_name(row_of(protocol).publisher)
    return open_outbox


def _publish_all(
    opened: AbstractContextManager[Outbox],
    chunks: Iterator[list[bytes]],
    count: int,
    by_line: bool,
) -> int:
    """How many messages there were; the server has taken each of them."""
    with opened as outbox, _progress(count) as advance, _accounted(outbox, by_line) as at_end:
        for chunk in chunks:
            if chunk:
                outbox.send(chunk)
                advance(len(chunk))
            else:
                outbox.look()
        at_end()
        outbox.confirm()
        return outbox.tally.published


@contextmanager
def _accounted(outbox: Outbox, by_line: bool) -> Iterator[Callable[[], None]]:
    """Adds to any error what became of the messages. The caller calls what this yields when all is sent."""
    ended = False

    def at_end() -> None:
        nonlocal ended
        ended = True

    try:
        yield at_end
    except (PenstockError, OSError, ValueError) as error:
        failure = _settled(outbox, error)
        sent = outbox.tally.published
        # With a single message the error itself says all.
        if sent > 1 or (sent == 1 and not ended):
            failure.add_note(outcome(outbox.tally, more=not ended, by_line=by_line))
        raise failure from None


def _settled(outbox: Outbox, error: Exception) -> Exception:
    """The error to report. If it is one of the input, what was sent before is confirmed first."""
    from penstock.client.errors import ClientError

    if isinstance(error, ClientError):
        return error
    try:
        outbox.confirm()
    except ClientError as refusal:
        return refusal
    return typer.BadParameter(str(error)) if isinstance(error, ValueError) else error


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
    """The lines as they arrive, without their \\n. A last line without one counts, if it is not empty.

    No lines at all mean that none came for a while.
    """
    rest = b""
    number = 0
    for chunk in arriving(stream):
        if chunk is None:
            yield []
            continue
        *complete, rest = (rest + chunk).split(b"\n")
        number += len(complete)
        if complete:
            yield complete
        if len(rest) > MAX_MESSAGE_BYTES:
            raise MessageTooLong(number + 1)
    if rest:
        yield [rest]


def arriving(stream: Any) -> Iterator[bytes | None]:
    """The input piece by piece; None whenever nothing came for CONFIRM_S."""
    try:
        descriptor: int | None = stream.fileno()
    except OSError:  # bytes in memory: never late
        descriptor = None
    while True:
        # `read1` leaves nothing in the buffer of the stream, so the descriptor tells all.
        if descriptor is not None and not select.select([descriptor], [], [], CONFIRM_S)[0]:
            yield None
            continue
        piece = stream.read1(READ_BYTES)
        if not piece:
            return
        yield piece


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
