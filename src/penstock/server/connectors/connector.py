"""What the module of a library implements: a connection to an outside broker, its subscriptions and
transactions. Coroutines on the event loop; link.py gives each call a time limit and opens what is lost.

    Refused      the broker answered no; the connection is fine
    Outage       no connection, or no answer: what was asked for may have happened or not

A module raises its library's exceptions: `outages` and `refusals` say which is which. It keeps nothing that
grows with what waits: the route hands it one batch of writes at a time, and a subscription gives no more
than it is asked for.
"""

import ssl
from collections.abc import Mapping
from typing import ClassVar, Final

from penstock.broker.outside import Abilities, Failures, Messages, ReaderTerms
from penstock.errors import PenstockError
from penstock.log.batch.view import Headers
from penstock.server.connectors.settings import Outside

# Where a reader is little more than a request that waits.
MOST_READERS: Final = 1_000


class ConnectorError(PenstockError):
    """One line for the client that asked."""

    reason: str

    line = "{reason}"


class Refused(ConnectorError):
    """The broker answered, and said no: the connection stays."""


class Outage(ConnectorError):
    """The broker does not answer, or cannot be reached: the connection is given up."""


class Subscription:
    """Of one reader."""

    @property
    def in_flight(self) -> int:
        """Messages that were given and not settled."""
        return 0

    def take_dropped(self) -> int:
        """Messages that nobody gets, since the last time: where the broker does not wait for a reader."""
        return 0

    async def fetch(self, most: int, max_bytes: int, wait_s: float) -> Messages:
        """At least one message where one comes within the time; one alone may have more bytes."""
        raise NotImplementedError

    async def ack(self, ids: list[bytes]) -> Failures:
        raise NotImplementedError

    async def nack(self, ids: list[bytes]) -> Failures:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Transaction:
    """Of one writer, at one broker."""

    async def write(
        self, target: "Connector", values: list[bytes], headers: list[Headers] | None
    ) -> Failures:
        """`target`: of the same broker, for the topic that it names."""
        raise NotImplementedError

    async def commit(self) -> None:
        raise NotImplementedError

    async def rollback(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Gives up what is not committed."""
        raise NotImplementedError


class Connector:
    """One connection. It is made anew after an outage, never opened twice."""

    outages: ClassVar[tuple[type[BaseException], ...]] = (OSError,)
    refusals: ClassVar[tuple[type[BaseException], ...]] = ()

    def __init__(self, settings: Outside, environment: Mapping[str, str]) -> None:
        self._table = settings
        self._environment = environment

    def password(self) -> str | None:
        """What the file or the variable of the route holds now."""
        try:
            return self._table.password(self._environment)
        except ValueError as error:
            raise Refused(f"{self._table.kind}: {error}") from None

    def trust(self) -> ssl.SSLContext:
        """For TLS: the broker shows a certificate for its name, by the authority of the route or one of the
        system."""
        path = self._table.ca_file
        try:
            return ssl.create_default_context(cafile=path)
        except OSError as error:  # also what is no PEM
            text = f"{self._table.kind}: ca_file = {path} cannot be read: {words(error)}"
            raise Refused(text) from None

    @classmethod
    def abilities(cls, settings: Outside) -> Abilities:
        raise NotImplementedError

    @classmethod
    def most_readers(cls, settings: Outside) -> int:
        """Of one route: what one costs differs."""
        return MOST_READERS

    async def open(self) -> None:
        """Until the broker has answered."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def write(self, values: list[bytes], headers: list[Headers] | None) -> Failures:
        """Until the broker has accepted all of them, in this order."""
        raise NotImplementedError

    async def begin(self, writer_id: str) -> Transaction:
        raise NotImplementedError

    async def subscribe(self, terms: ReaderTerms) -> Subscription:
        raise NotImplementedError


def text_of_header(raw: bytes) -> str:
    """For libraries that want text and send it as UTF-8: names of clients are that, but need not be."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def words(error: BaseException) -> str:
    """One line of a library's error; some have no text."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
