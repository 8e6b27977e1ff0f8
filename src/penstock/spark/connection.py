"""From options to a client, and calls that survive a restart of the server.

Keys and certificates are read once, on the driver; executors get the content, not the paths.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from penstock.client.errors import PASSING, ClientError
from penstock.spark.options import ConnectionOptions, OptionError
from penstock.spark.tls_files import check_authorities, check_own

if TYPE_CHECKING:
    from penstock.client.flight import FlightClient

# A worker of Spark serves one job after the other, mostly the same one, whose tasks may go to some servers.
MAX_OPEN_CLIENTS = 8

T = TypeVar("T")

# The open clients of this process. Spark runs our code in one thread of it, so there is no lock.
_open_clients: "dict[Connection, FlightClient]" = {}


@dataclass(frozen=True, slots=True)
class Connection:
    """Can be pickled; shows no secret. `others` are tried when `server` cannot be reached. `retries` count
    per call and for each of them, with a pause before each round. `spread`: whether tasks may use servers
    that the server names."""

    server: str
    key: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: bytes | None = field(default=None, repr=False)
    tls_client: tuple[bytes, bytes] | None = field(default=None, repr=False)
    retries: int = 0
    retry_interval_s: float = 0.0
    others: tuple[str, ...] = ()
    spread: bool = True

    @property
    def servers(self) -> tuple[str, ...]:
        return (self.server, *self.others)

    def at(self, servers: Sequence[str]) -> "Connection":
        """The same to these servers; where there are none, to its own."""
        if not servers:
            return self
        return replace(self, server=servers[0], others=tuple(servers[1:]))

    def open(self) -> "FlightClient":
        # Here, because pyarrow.flight takes its time to load and planning may not need it.
        from penstock.client.flight import connect

        return connect(
            self.server, self.key, tls=self.tls, tls_ca=self.tls_ca, tls_client=self.tls_client
        )

    def client(self) -> "FlightClient":
        """One that stays open in this process: connecting takes longer than most calls do."""
        place = self._place
        found = _open_clients.get(place)
        if found is None:
            while len(_open_clients) >= MAX_OPEN_CLIENTS:
                _open_clients.pop(next(iter(_open_clients))).close()
            found = _open_clients[place] = self.open()
        return found

    @property
    def _place(self) -> "Connection":
        """The same for all that may share a client."""
        return replace(self, others=(), retries=0, retry_interval_s=0.0, spread=True)

    def drop(self) -> None:
        """Closes it; the next call opens another one."""
        found = _open_clients.pop(self._place, None)
        if found is not None:
            found.close()

    def call(self, function: "Callable[[FlightClient], T]") -> T:
        """Runs a function that may be repeated. Raises what its last attempt raised."""
        connection, attempt = self, 0
        while True:
            try:
                return function(connection.client())
            except PASSING as error:
                connection = connection.next(attempt, error)
                attempt += 1

    def next(self, attempt: int, error: ClientError) -> "Connection":
        """After an attempt that failed, numbered from 0: the connection for the next one, to the next
        server. Raises the error when there is none left."""
        self.drop()
        count = len(self.servers)
        if attempt + 1 >= count * (self.retries + 1):
            raise error
        if (attempt + 1) % count == 0:
            self.wait()
        return self.at((*self.others, self.server))

    def wait(self) -> None:
        time.sleep(self.retry_interval_s)


def resolve(options: ConnectionOptions, environment: Mapping[str, str] = os.environ) -> Connection:
    """Reads what the options point to. Raises OptionError."""
    key = options.key
    if options.key_file is not None:
        key = _content("keyFile", options.key_file).decode(errors="replace").strip()
    if options.key_env is not None:
        key = environment.get(options.key_env)
        if not key:
            raise OptionError("keyEnv", f"{options.key_env} is not set where the driver runs")
    if key is not None and (not key.isascii() or not key.isprintable() or not key.strip()):
        given = next(
            name
            for name, text in (
                ("keyFile", options.key_file),
                ("keyEnv", options.key_env),
                ("accessKey", key),
            )
            if text is not None
        )
        raise OptionError(given, "is no API key: it must be one line of ASCII")
    client = None
    if options.tls_certificate_file is not None and options.tls_key_file is not None:
        client = (
            _content("tlsCertificateFile", options.tls_certificate_file),
            _content("tlsKeyFile", options.tls_key_file),
        )
        check_own(options.tls_certificate_file, options.tls_key_file)
    authorities = None
    if options.tls_ca_file is not None:
        authorities = _content("tlsCaFile", options.tls_ca_file)
        check_authorities(options.tls_ca_file)
    return Connection(
        server=options.server,
        key=key,
        tls=options.tls,
        tls_ca=authorities,
        tls_client=client,
        retries=options.retries,
        retry_interval_s=options.retry_interval_ms / 1000,
        others=options.others,
        spread=options.spread,
    )


def _content(option: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise OptionError(option, f"cannot read {path}: {error.strerror}") from None
