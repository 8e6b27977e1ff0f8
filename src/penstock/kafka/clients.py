"""Clients of librdkafka, all with the same address, login and limits. Makes them; uses none of them.

What an operator gives in `[kafka.client]` goes to every client as it is, after what this module sets and
before what the engine relies on. What it says about connections is told once per kind of trouble, by
`Trouble`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

# As large as a record of Penstock may be, and its headers: what a topic takes, Kafka decides.
MESSAGE_BYTES: Final = 65 * 1024 * 1024
# Reconnecting: librdkafka doubles the pause from 100 ms on. A second is soon enough for a broker that
# restarts.
RECONNECT_MAX_MS: Final = 1_000

# A question that is open for so long means that nothing goes through: an answer takes milliseconds, and on
# a broker that is very busy a second.
SILENT_S: Final = 5.0

_NOBODY_ANSWERS: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._AUTHENTICATION,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)

logger = logging.getLogger(__name__)
# Every client complains about every attempt to connect; `Trouble` tells it once.
_library = logging.getLogger(f"{__name__}.librdkafka")
_library.setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """`reach_s`: how long Kafka may be away before what waits for it fails. `client`: for librdkafka."""

    bootstrap: str
    gateway: str = "penstock"
    replication: int = -1
    reach_s: float = 30.0
    client: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def as_kafka_error() -> Iterator[None]:
    """The library raises a fatal error inside its own call of `error_cb`, from whichever call serves that,
    or loses it there: the interpreter complains then."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise KafkaException(KafkaError(KafkaError._FATAL, str(error))) from error


class Trouble:
    """What librdkafka last complained about, over all clients, and whether Kafka is silent: of a connection
    through which nothing goes, librdkafka finds out after a minute. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._last = ""
        self._reason = ""
        self._noted_s = 0.0
        self.errors = 0
        # Since when an answer is waited for.
        self._asked_s: float | None = None

    @property
    def last(self) -> str:
        """In one line; empty when nothing was wrong since the last success."""
        asked_s = self._asked_s
        if self._last or asked_s is None:
            return self._last
        silent_s = self._clock_s() - asked_s
        return f"Kafka has not answered for {silent_s:.0f} s" if silent_s >= SILENT_S else ""

    def asking(self) -> None:
        """Somebody who asks again and again asks something, and waits until it is answered."""
        if self._asked_s is None:
            self._asked_s = self._clock_s()

    def note(self, error: KafkaError) -> None:
        """One broker of several that is away is no trouble: it is remembered as the reason, should the
        others follow."""
        text = error.str()
        with self._lock:
            self.errors += 1
            if error.code() not in _NOBODY_ANSWERS:
                self._reason = text
                return
            new = not self._last
            self._noted_s = self._clock_s()
            self._last = f"{text} ({self._reason})" if self._reason else text
        if new:
            logger.warning("Kafka cannot be reached or refuses: %s", self._last)

    def now_s(self) -> float:
        """For `answered`."""
        return self._clock_s()

    def answered(self, asked_s: float) -> None:
        """Kafka has answered what it was asked at that time. What librdkafka had taken in before the
        trouble began, and hands on later, is no answer."""
        self._asked_s = None
        if not self._last or asked_s <= self._noted_s:
            return
        with self._lock:
            self._last = self._reason = ""
        logger.warning("Kafka answers again")


class Clients:
    """Makes clients; whoever asked for one closes it."""

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self.trouble = Trouble()

    def _settings(self, needed: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "client.id": self.options.gateway,
            "socket.keepalive.enable": True,
            "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
            "log.connection.close": False,
            **self.options.client,
            "bootstrap.servers": self.options.bootstrap,
            "error_cb": self.trouble.note,
            "logger": _library,
            **needed,
        }

    def producer(self, **needed: Any) -> Producer:
        """`needed`: with underscores in the place of dots."""
        return Producer(self._settings({"message.max.bytes": MESSAGE_BYTES, **_dotted(needed)}))

    def consumer(self, **needed: Any) -> Consumer:
        """Sees what is committed, from the places that it is told; joins no group and commits nothing."""
        settings = {
            "group.id": f"{self.options.gateway}.reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "receive.message.max.bytes": 2 * MESSAGE_BYTES,
            "fetch.message.max.bytes": 1024 * 1024,
            "allow.auto.create.topics": False,
            **_dotted(needed),
        }
        return Consumer(self._settings(settings))

    def admin(self) -> AdminClient:
        return AdminClient(self._settings({}))


def _dotted(needed: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in needed.items()}
