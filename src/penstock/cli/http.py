"""A small blocking client of the HTTP API, for the commands. JSON in, JSON out, bounded in time.

Follows no redirect and uses no proxy: the API key goes to the named server and nowhere else.

    ApiError             (a PenstockError, one line)
        CannotConnect    exit 4: no answer in time
        ApiNotFound      exit 3
        ApiNotAuthorized exit 5
        NotOurServer     something answered that is not this API
"""

import base64
import http.client
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, ClassVar, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import typer

from penstock.errors import ExitCode, PenstockError

PREFIX: Final = "/api/v1"
# A page of records is 8 MiB at most, base64 and JSON make a third more of it.
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 256 * 1024


class ApiError(PenstockError):
    """`name` is the server's name of the error, `status` that of HTTP (0: none)."""

    url: str
    status: int
    name: str
    text: str

    line = "{text}"


class ApiNotFound(ApiError):
    exit_code: ClassVar[int] = ExitCode.NOT_FOUND


class ApiNotAuthorized(ApiError):
    exit_code: ClassVar[int] = ExitCode.NOT_AUTHORIZED

    line = "{text}; give an API key that may do this, with PENSTOCK_KEY or a context"


class CannotConnect(ApiError):
    exit_code: ClassVar[int] = ExitCode.NO_CONNECTION

    line = "cannot reach {url}: {text}; is penstock serve running there, is --http right?"


class NotOurServer(ApiError):
    line = "{url} does not answer like Penstock: {text}; is --http right?"


class _ErrorFields(msgspec.Struct, frozen=True):
    name: str
    text: str


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorFields


class Api:
    """One server. A call opens a connection, asks and closes it."""

    def __init__(
        self,
        url: str,
        key: str | None,
        timeout_s: float,
        trust: ssl.SSLContext | None = None,
        user: str | None = None,
    ) -> None:
        """`user`: whose password the key is; None: it is an API key. No key: the certificate in `trust`
        tells who asks."""
        self._url = url.rstrip("/")
        self._key = key
        self._user = user
        self._timeout_s = timeout_s
        self._trust = trust
        try:
            parts = urlsplit(self._url)
            self._host, self._port, self._path = parts.hostname, parts.port, parts.path
            self._scheme = parts.scheme
        except ValueError:
            self._host, self._scheme = None, ""
        if not self._host or self._scheme not in ("http", "https"):
            raise typer.BadParameter(f"--http {url!r}: write a URL such as http://127.0.0.1:8080")

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, query=query)

    def list(self, what: str, under: str = "") -> Iterator[Any]:
        """All entries of /topics or /groups: the server gives a list in parts. `under`: what stands before
        it in the path."""
        after = None
        while True:
            part = self.get(f"{under}/{what}", after=after)
            yield from part[what]
            after = part.get("next")
            if after is None:
                return

    def call(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """The decoded answer, None if it is empty. Path from behind /api/v1."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"{self._path}{PREFIX}{path}" + (f"?{urlencode(given)}" if given else "")
        status, content = self._exchange(method, target, body)
        if 200 <= status < 300:
            try:
                return msgspec.json.decode(content) if content else None
            except msgspec.DecodeError:
                raise NotOurServer(self._url, status, "", "no JSON") from None
        raise self._error(status, content)

    def stream(self, path: str, output: BinaryIO, query: Mapping[str, Any]) -> None:
        """Writes the answer as it comes, however long it is. The time limit is that of each read."""
        target = f"{self._path}{PREFIX}{path}?{urlencode(query)}"
        with self._asked("GET", target, None) as response:
            if not 200 <= response.status < 300:
                raise self._error(response.status, response.read(MAX_REPLY_BYTES))
            while piece := response.read1(_READ_BYTES):
                output.write(piece)
            output.flush()

    def _error(self, status: int, content: bytes) -> ApiError:
        try:
            error = msgspec.json.decode(content, type=_ErrorBody).error
        except msgspec.DecodeError:
            return NotOurServer(self._url, status, "", f"status {status}")
        kind: type[ApiError] = ApiError
        if status == 404:
            kind = ApiNotFound
        elif status in (401, 403):
            kind = ApiNotAuthorized
        return kind(self._url, status, error.name, error.text)

    def _exchange(self, method: str, target: str, body: Any) -> tuple[int, bytes]:
        deadline_s = time.monotonic() + self._timeout_s
        with self._asked(method, target, body) as response:
            return response.status, self._read(response, deadline_s)

    @contextmanager
    def _asked(self, method: str, target: str, body: Any) -> Iterator[http.client.HTTPResponse]:
        """What goes wrong is an ApiError, also while the answer is read."""
        headers = self._login()
        content = None
        if body is not None:
            headers["Content-Type"] = b"application/json"
            content = msgspec.json.encode(body)
        connection = self._connection()
        try:
            connection.request(method, target, content, headers)
            yield connection.getresponse()
        except TimeoutError:
            raise self._too_slow() from None
        except http.client.RemoteDisconnected:
            hint = "" if self._scheme == "https" else ", perhaps it expects https"
            text = f"it closed the connection without an answer{hint}"
            raise CannotConnect(self._url, 0, "", text) from None
        except OSError as error:
            raise CannotConnect(self._url, 0, "", _reason(error)) from None
        except http.client.HTTPException:
            raise NotOurServer(self._url, 0, "", "no HTTP") from None
        except ValueError:
            # http.client refuses line ends in a header, and its text would show the key.
            raise typer.BadParameter("the API key has characters that no key has") from None
        finally:
            connection.close()

    def _login(self) -> dict[str, bytes]:
        """Header fields are Latin-1 to http.client; as UTF-8 bytes a key is what the server expects."""
        if self._key is None:
            return {}
        key = self._key.encode("utf-8", "surrogateescape")
        if self._user is None:
            return {"Authorization": b"Bearer " + key}
        pair = self._user.encode("utf-8", "surrogateescape") + b":" + key
        return {"Authorization": b"Basic " + base64.b64encode(pair)}

    def _connection(self) -> http.client.HTTPConnection:
        assert self._host is not None, "checked when made"
        if self._scheme == "https":
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._trust
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _read(self, response: http.client.HTTPResponse, deadline_s: float) -> bytes:
        """The socket's own limit is per read: this one also ends an answer that arrives byte by byte."""
        pieces: list[bytes] = []
        size = 0
        while piece := response.read1(_READ_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_REPLY_BYTES:
                raise NotOurServer(self._url, response.status, "", "its answer never ends")
            if time.monotonic() > deadline_s:
                raise self._too_slow()
        return b"".join(pieces)

    def _too_slow(self) -> CannotConnect:
        return CannotConnect(self._url, 0, "", f"no answer within {self._timeout_s:g} s")


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        # Its other texts name a line of OpenSSL.
        words = (error.reason or "no reason given").replace("_", " ").lower()
        return f"no TLS came about ({words}), perhaps it speaks http"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno)
