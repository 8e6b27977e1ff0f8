"""NATS JetStream, by nats-py. Needs the extra `nats`.

    WRITE   a publish; accepted when the stream has stored it (PubAck)
    read    pull requests to a consumer. With `consumer` that is a durable one, which all readers share;
            without, one of the reader's own
    ACK     confirmed by the server. NACK: delivered again at once
    id      u64 sequence of the message in its stream

No transactions. The stream has to exist.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import nats
import nats.aio.client
import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from penstock.broker.outside import UNKNOWN_ID, Abilities, Failures, Messages, ReaderTerms
from penstock.log.batch.view import Headers
from penstock.server.config.units import parse_time_us
from penstock.server.connectors.connector import Connector, Subscription, text_of_header, words
from penstock.server.connectors.settings import NatsRoute, Outside, login_of

# The library looks for a connection that died in silence: after two or three of these.
PING_INTERVAL_S: Final = 2
# A publish that waits for its PubAck is a future of the library.
PUBLISHES_AT_ONCE: Final = 1_000
# The server forgets a consumer of one reader this long after it is gone.
OWN_CONSUMER_S: Final = 60.0
ID_BYTES: Final = 8

ACK: Final = b"+ACK"
NACK: Final = b"-NAK"
# Statuses that end a pull request: no messages, its time is over, too many bytes or requests.
_OVER: Final = frozenset({"404", "408", "409"})
_HEARTBEAT: Final = "100"
# What the library says of a message before it is sent.
_OF_ONE_MESSAGE: Final = (nats.errors.BadHeaderError, nats.errors.MaxPayloadError)


class _Client(nats.aio.client.Client):
    """The library asks the server alone whether to encrypt, and would send the password in clear."""

    def __init__(self, has_tls: bool) -> None:
        super().__init__()
        self._has_tls = has_tls

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Before anything is sent."""
        if initial_connection and self._has_tls and not info.get("tls_required"):
            raise nats.errors.Error("the server does not ask for TLS, and url is tls://")
        await super()._process_info(info, initial_connection)


class NatsConnector(Connector):
    outages = (OSError, nats.errors.Error, asyncio.TimeoutError)
    refusals = (
        nats.js.errors.APIError,
        nats.js.errors.NoStreamResponseError,
        nats.errors.MaxPayloadError,
        nats.errors.BadSubjectError,
        nats.errors.BadHeaderError,
        nats.errors.AuthorizationError,
    )

    def __init__(self, settings: Outside, environment: Mapping[str, str]) -> None:
        super().__init__(settings, environment)
        assert isinstance(settings, NatsRoute)
        self.settings = settings
        self.client = _Client(settings.has_tls)

    @classmethod
    def abilities(cls, settings: Outside) -> Abilities:
        return Abilities(fetch=True, ack=True, nack=True)

    async def open(self) -> None:
        login = login_of(self.settings.url, self.password())

        async def note(error: Exception) -> None:
            """The library would log it."""

        await self.client.connect(
            login.address,
            user=login.user,
            password=login.password,
            allow_reconnect=False,
            connect_timeout=max(1, int(self.settings.timeout_s)),
            ping_interval=PING_INTERVAL_S,
            error_cb=note,
            name="penstock",
            tls=self.trust() if self.settings.has_tls else None,
        )
        self.jetstream = self.client.jetstream(timeout=self.settings.timeout_s)

    async def close(self) -> None:
        await self.client.close()

    async def write(self, values: list[bytes], headers: list[Headers] | None) -> Failures:
        failures: Failures = {}
        for first in range(0, len(values), PUBLISHES_AT_ONCE):
            rows = range(first, min(first + PUBLISHES_AT_ONCE, len(values)))
            waiting: dict[int, asyncio.Future[Any]] = {}
            for row in rows:
                try:
                    waiting[row] = await self.jetstream.publish_async(
                        self.settings.subject,
                        values[row],
                        stream=self.settings.stream,
                        headers=None if headers is None else _headers(headers[row]),
                    )
                except _OF_ONE_MESSAGE as error:  # those of other sessions beside it are good
                    failures[row] = words(error)
            outcomes = await asyncio.gather(*waiting.values(), return_exceptions=True)
            for row, outcome in zip(waiting, outcomes, strict=True):
                if isinstance(outcome, self.refusals):
                    failures[row] = str(outcome)
                elif isinstance(outcome, BaseException):
                    raise outcome
        return failures

    async def subscribe(self, terms: ReaderTerms) -> Subscription:
        settings = self.settings
        shared = settings.consumer is not None
        policy = DeliverPolicy.ALL if settings.start == "earliest" else DeliverPolicy.NEW
        made = await self.jetstream.add_consumer(
            settings.stream,
            ConsumerConfig(
                durable_name=settings.consumer,
                deliver_policy=policy,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=parse_time_us(settings.ack_time) / 1_000_000,
                max_ack_pending=terms.max_in_flight,
                filter_subject=settings.subject,
                inactive_threshold=None if shared else OWN_CONSUMER_S,
            ),
        )
        pull = NatsSubscription(self.client, settings, made.name)
        await pull.open()
        return pull


def _headers(pairs: Headers) -> dict[str, str] | None:
    """The library has one value for each name; the last one stays."""
    return {text_of_header(name): text_of_header(value) for name, value in pairs} or None


class NatsSubscription(Subscription):
    """Pull requests by hand: those of the library wait for a full batch after the first message."""

    def __init__(self, client: nats.aio.client.Client, settings: NatsRoute, consumer: str) -> None:
        self._client = client
        self._settings = settings
        self._requests = f"$JS.API.CONSUMER.MSG.NEXT.{settings.stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._waiting: dict[bytes, Msg] = {}

    async def open(self) -> None:
        self._subscription = await self._client.subscribe(self._inbox)

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    async def fetch(self, most: int, max_bytes: int, wait_s: float) -> Messages:
        found = Messages()
        # What is there already; then the first that comes, with what is there by then.
        await self._pull(found, {"batch": most, "max_bytes": max_bytes, "no_wait": True}, 0.0)
        if not found:
            await self._pull(found, {"batch": 1, "expires": int(wait_s * 1e9)}, wait_s)
            if found and most > 1:
                rest = {"batch": most - 1, "max_bytes": max_bytes, "no_wait": True}
                await self._pull(found, rest, 0.0)
        return found

    async def _pull(self, found: Messages, request: Mapping[str, object], wait_s: float) -> None:
        """Until the request is carried out, or the server says that it is over."""
        await self._client.publish(self._requests, json.dumps(request).encode(), self._inbox)
        left = request["batch"]
        assert isinstance(left, int)
        while left:
            message = await self._subscription.next_msg(wait_s + self._settings.timeout_s)
            status = "" if message.headers is None else message.headers.get("Status", "")
            if status == _HEARTBEAT:
                continue
            if status and not message.data:
                if status not in _OVER:
                    raise nats.js.errors.APIError.from_msg(message)
                return
            id = message.metadata.sequence.stream.to_bytes(ID_BYTES, "big")
            self._waiting[id] = message
            found.add(id, message.data)
            left -= 1

    async def ack(self, ids: list[bytes]) -> Failures:
        return await self._settle(ids, ACK)

    async def nack(self, ids: list[bytes]) -> Failures:
        return await self._settle(ids, NACK)

    async def _settle(self, ids: list[bytes], word: bytes) -> Failures:
        failures: Failures = {}
        rows: list[int] = []
        for row, id in enumerate(ids):
            if id in self._waiting:
                rows.append(row)
            else:
                failures[row] = UNKNOWN_ID
        for first in range(0, len(rows), PUBLISHES_AT_ONCE):
            some = rows[first : first + PUBLISHES_AT_ONCE]
            asked = [
                self._client.request(
                    self._waiting.pop(ids[row]).reply, word, timeout=self._settings.timeout_s
                )
                for row in some
                if ids[row] in self._waiting
            ]
            await asyncio.gather(*asked)
        return failures

    async def close(self) -> None:
        """What is in flight goes to the next reader at once. The inbox goes first, and with it the request
        that waits: it would get what is given back."""
        await self._subscription.unsubscribe()
        for message in self._waiting.values():
            await self._client.publish(message.reply, NACK)
        self._waiting.clear()
        if self._settings.consumer is None:
            name = self._requests.rpartition(".")[2]
            await self._client.jetstream().delete_consumer(self._settings.stream, name)


CONNECTOR: Final = NatsConnector
