"""How `penstock pub` sends over the HTTP API: the only way of the command line to send headers.

Each `send` waits for the answers, in requests that fit the limits of the API.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

from penstock.cli.outbox import Extras, Outbox
from penstock.cli.target import Target

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.cli.http import Api
    from penstock.client.tally import Tally

# Of one request: the server takes 1,000 records and 4 MiB, in base64.
REQUEST_RECORDS: Final = 1_000
REQUEST_BYTES: Final = 1024 * 1024
# A single message, with its key and headers beside it.
MAX_MESSAGE_BYTES: Final = 2_900_000
NEEDS_HTTP_ADDRESS: Final = (
    "headers go over HTTP, and --server is given without --http: give the URL of that server"
)


class HttpOutbox:
    def __init__(self, api: "Api", topic: str, extras: Extras) -> None:
        from penstock.client.tally import Tally

        self._api = api
        self._topic = topic
        self._extras = extras
        self._tally = Tally()

    @property
    def tally(self) -> "Tally":
        return self._tally

    def send(self, values: list[bytes]) -> None:
        from penstock.cli.http import ApiError, CannotConnect, segment

        for piece in _pieces(values):
            body = self._body(piece)
            self._tally.published += len(piece)
            try:
                self._api.call("POST", f"/topics/{segment(self._topic)}/records", body)
            except CannotConnect:
                raise  # whether it was stored is not known
            except ApiError:
                self._tally.refused += len(piece)
                raise
            self._tally.confirmed += len(piece)

    def _body(self, values: list[bytes]) -> dict[str, Any]:
        extras = self._extras
        common: dict[str, Any] = {}
        if extras.key is not None:
            common["key"] = _encoded(extras.key)
        if extras.headers:
            common["headers"] = [[name, _encoded(value)] for name, value in extras.headers]
        body: dict[str, Any] = {"records": [{"value": _encoded(one), **common} for one in values]}
        for name, given in (
            ("partition", extras.partition),
            ("ttl_ms", extras.ttl_ms),
            ("delay_ms", extras.delay_ms),
        ):
            if given is not None:
                body[name] = given
        return body

    def look(self) -> None:
        """Nothing waits."""

    def confirm(self) -> None:
        """Nothing waits."""


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _pieces(values: list[bytes]) -> Iterator[list[bytes]]:
    piece: list[bytes] = []
    size = 0
    for value in values:
        if len(value) > MAX_MESSAGE_BYTES:
            text = f"a message of {len(value)} bytes: HTTP takes {MAX_MESSAGE_BYTES} at most"
            raise ValueError(text)
        if piece and (len(piece) == REQUEST_RECORDS or size + len(value) > REQUEST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(value)
        size += len(value)
    if piece:
        yield piece


@contextmanager
def open_http(target: Target, topic: str, qos: int, extras: Extras) -> Iterator[Outbox]:
    """HTTP has no QoS: what is confirmed is on disk."""
    if not target.same_server:
        raise typer.BadParameter(NEEDS_HTTP_ADDRESS)
    if extras.delay_ms is not None and (
        extras.key is not None
        or extras.headers
        or extras.ttl_ms is not None
        or extras.partition is not None
    ):
        raise typer.BadParameter("--delay goes with no --message-key, --header, --ttl, --partition")
    yield HttpOutbox(target.api(), topic, extras)
