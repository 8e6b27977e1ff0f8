"""How `penstock pub` sends: over BlipMQ or RustLog, each with its own way of confirmation.

An outbox raises a refusal as soon as it is known, and `tally` counts what was confirmed and refused.
RustLog answers every request; BlipMQ does not answer a successful publish, so the outbox asks for a
confirmation after a number of bytes and after some time.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import typer

from penstock.cli.target import Target

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.client.errors import NotFound
    from penstock.client.tally import Tally

# Between two confirmations: large enough not to matter, small enough that each comes in time.
FLUSH_BYTES: Final = 4 * 1024 * 1024
# A slow input is confirmed this often, so that its user learns of a refusal while there is time to act.
CONFIRM_S: Final = 1.0
# One RustLog request: a byte takes up to four characters, and a frame holds 10 MiB.
REQUEST_BYTES: Final = 1024 * 1024
REQUEST_RECORDS: Final = 5_000


PARTITION_NEEDS_RUSTLOG: Final = (
    "--partition needs --protocol rustlog or flymq; BlipMQ cannot choose one"
)
TTL_NEEDS_FLYMQ: Final = "--ttl needs --protocol flymq; the other protocols cannot say it"
DELAY_NEEDS_FLYMQ: Final = "--delay needs --protocol flymq; the other protocols cannot say it"
KEY_NEEDS_FLYMQ: Final = "--message-key needs --protocol flymq; the other protocols have no keys"


HEADER_NEEDS_HTTP: Final = (
    "--header needs --protocol http or fujin; the other protocols have no headers"
)


class Outbox(Protocol):
    @property
    def tally(self) -> "Tally":
        """How many of the messages sent so far were confirmed, refused, or have no answer."""

    def send(self, values: list[bytes]) -> None:
        """Send all; raises if the server refused these or earlier ones, as far as that is known."""

    def look(self) -> None:
        """Called while there is nothing to send: confirms what has waited long enough."""

    def confirm(self) -> None:
        """Returns when the server has taken all that was sent; raises what it refused."""


class BlipMQOutbox:
    """`client` is a blocking BlipMQ client."""

    def __init__(
        self, client: Any, topic: str, qos: int, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._topic = topic
        self._qos = qos
        self._clock_s = clock_s
        self._open_messages = 0
        self._open_bytes = 0
        self._confirmed_s = clock_s()

    @property
    def tally(self) -> "Tally":
        tally: Tally = self._client.tally
        return tally

    def send(self, values: list[bytes]) -> None:
        self._client.publish_many(self._topic, values, self._qos)
        self._open_messages += len(values)
        self._open_bytes += sum(map(len, values))
        if self._open_bytes >= FLUSH_BYTES or self._late():
            self.confirm()

    def look(self) -> None:
        if self.tally.refused or self._late():
            self.confirm()

    def _late(self) -> bool:
        return self._clock_s() - self._confirmed_s >= CONFIRM_S

    def confirm(self) -> None:
        from penstock.client.errors import NotAuthorized, PublishRefused, Refused

        if not self._open_messages:
            return
        what = f"PUBLISH to {self._topic}"
        try:
            self._client.flush()
        except Refused as error:  # the question itself: the key is not good any more
            raise type(error)(error.code, error.text, what) from None
        except PublishRefused as error:
            if error.not_authorized:
                first = error.refusals[0]
                raise NotAuthorized(first.code, first.text, what) from None
            raise
        self._open_messages = self._open_bytes = 0
        self._confirmed_s = self._clock_s()


class RustLogOutbox:
    """`client` is a blocking RustLog client. Each `send` waits for the offsets."""

    def __init__(self, client: Any, topic: str, partition: int) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition

    @property
    def tally(self) -> "Tally":
        tally: Tally = self._client.tally
        return tally

    def send(self, values: list[bytes]) -> None:
        from penstock.client.errors import NotFound

        try:
            self._client.produce_many(self._topic, self._partition, requests(values))
        except NotFound as error:
            raise self._with_suggestion(error) from None

    def look(self) -> None:
        """Nothing waits."""

    def confirm(self) -> None:
        """Nothing waits."""

    def _with_suggestion(self, error: "NotFound") -> "NotFound":
        from penstock.cli.topic import suggestion
        from penstock.client.errors import ClientError, NotFound

        try:
            names = list(self._client.list_topics())
        except ClientError:
            # Not every server has this extension; the error is good enough without.
            return error
        if self._topic in names:
            return error
        text = f"{error.text}; {suggestion(self._topic, names)}"
        return NotFound(error.code, text, error.what)


@dataclass(frozen=True, slots=True)
class Extras:
    """What only some ways have: a partition, a key of the messages, a time to live, a delay, headers."""

    partition: int | None = None
    key: bytes | None = None
    ttl_ms: int | None = None
    delay_ms: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


# target, topic, QoS, what else was asked for
OpenOutbox = Callable[[Target, str, int, Extras], AbstractContextManager[Outbox]]


@contextmanager
def open_blipmq(target: Target, topic: str, qos: int, extras: Extras) -> Iterator[Outbox]:
    from penstock.client.blipmq import connect_blipmq

    require_plain(extras)
    target.require_no_user("BlipMQ")
    if extras.partition is not None:
        raise typer.BadParameter(PARTITION_NEEDS_RUSTLOG)
    with connect_blipmq(target.server, key=target.login_key, settings=target.settings()) as client:
        yield BlipMQOutbox(client, topic, qos)


@contextmanager
def open_rustlog(target: Target, topic: str, qos: int, extras: Extras) -> Iterator[Outbox]:
    """RustLog has no QoS: what is confirmed is on disk."""
    require_plain(extras)
    target.require_no_key("RustLog")
    target.require_no_user("RustLog")
    from penstock.client.rustlog import connect_rustlog

    with connect_rustlog(target.server, settings=target.settings()) as client:
        yield RustLogOutbox(client, topic, extras.partition or 0)


def require_no_headers(extras: Extras) -> None:
    if extras.headers:
        raise typer.BadParameter(HEADER_NEEDS_HTTP)


def require_plain(extras: Extras) -> None:
    require_no_headers(extras)
    if extras.key is not None:
        raise typer.BadParameter(KEY_NEEDS_FLYMQ)
    if extras.ttl_ms is not None:
        raise typer.BadParameter(TTL_NEEDS_FLYMQ)
    if extras.delay_ms is not None:
        raise typer.BadParameter(DELAY_NEEDS_FLYMQ)


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


def outcome(tally: "Tally", more: bool, by_line: bool = False) -> str:
    """One line on what became of the messages. `more`: there may be some that were not sent.

    `by_line`: each line of the input is a message, so the next run can begin behind those that are stored.
    With refusals that line is unknown.
    """
    parts = [f"{tally.confirmed} confirmed"]
    if tally.refused:
        parts.append(f"{tally.refused} refused")
    if tally.unanswered:
        parts.append(f"{tally.unanswered} without an answer")
    if more:
        parts.append("the rest not sent")
    text = ", ".join(parts)
    if by_line and not tally.refused and (more or tally.unanswered):
        text += f"; go on from line {tally.confirmed + 1}"
        text += ", which may have arrived" if tally.unanswered else ""
    return text
