"""Redis Streams, by redis-py. Needs the extra `redis`.

    WRITE   XADD, a whole batch in one pipeline; accepted when the server has answered. How durable that is
            depends on its appendfsync
    read    with `group` XREADGROUP: readers share the messages. Without, XREAD: each gets everything, and
            there is nothing to acknowledge
    ACK     XACK. NACK makes an entry idle, so that the next reader claims it (XAUTOCLAIM); entries that are
            not acknowledged within `ack_time` are claimed too
    id      the id of the entry, as text

No transactions. The message is one field of the entry, its headers are further ones. XADD makes the stream.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from penstock.broker.outside import UNKNOWN_ID, Abilities, Failures, Messages, ReaderTerms
from penstock.log.batch.view import Headers
from penstock.server.config.units import parse_time_us
from penstock.server.connectors.connector import Connector, Refused, Subscription
from penstock.server.connectors.settings import Outside, RedisRoute

# XREADGROUP has no limit in bytes: this and the size of messages bound what one request may bring.
COUNT_AT_ONCE: Final = 256
# None: the entry was deleted while it was pending.
Entries: TypeAlias = list[tuple[bytes, dict[bytes, bytes] | None]]
_NEW: Final = ">"
_GROUP_EXISTS: Final = "BUSYGROUP"
_NO_GROUP: Final = "NOGROUP"


class RedisConnector(Connector):
    outages = (OSError, RedisError, asyncio.TimeoutError)
    refusals = (ResponseError, AuthenticationError)

    def __init__(self, settings: Outside, environment: Mapping[str, str]) -> None:
        super().__init__(settings, environment)
        assert isinstance(settings, RedisRoute)
        self.settings = settings
        self.client: redis.Redis | None = None

    @classmethod
    def abilities(cls, settings: Outside) -> Abilities:
        assert isinstance(settings, RedisRoute)
        shared = settings.group is not None
        return Abilities(fetch=True, ack=shared, nack=shared)

    async def open(self) -> None:
        self.client = self.connect(0.0)
        await self.client.ping()

    def connect(self, wait_s: float) -> redis.Redis:
        """`wait_s`: that its commands wait by themselves."""
        password = self.password()
        options: dict[str, Any] = {} if password is None else {"password": password}
        if self.settings.has_tls:
            self.trust()  # the library would read the file later, and without telling which
            options |= {"ssl_ca_certs": self.settings.ca_file, "ssl_check_hostname": True}
        return redis.Redis.from_url(
            self.settings.url,
            socket_connect_timeout=self.settings.timeout_s,
            socket_timeout=self.settings.timeout_s + wait_s,
            # Tried again by the route, which counts and tells it.
            retry=Retry(NoBackoff(), 0),
            client_name="penstock",
            single_connection_client=False,
            **options,
        )

    async def close(self) -> None:
        if self.client is not None:
            await self.client.aclose()

    async def write(self, values: list[bytes], headers: list[Headers] | None) -> Failures:
        assert self.client is not None
        settings = self.settings
        name = settings.field.encode()
        async with self.client.pipeline(transaction=False) as pipe:
            for row, value in enumerate(values):
                fields: dict[Any, Any] = {} if headers is None else dict(headers[row])
                # Last, so that no header takes its place.
                pipe.xadd(
                    settings.stream,
                    {**fields, name: value},
                    maxlen=settings.max_length,
                    approximate=settings.max_length is not None,
                )
            outcomes = await pipe.execute(raise_on_error=False)
        failures: Failures = {}
        for row, outcome in enumerate(outcomes):
            if isinstance(outcome, ResponseError):
                failures[row] = f"redis: {outcome}"
            elif isinstance(outcome, BaseException):
                raise outcome
        return failures

    async def subscribe(self, terms: ReaderTerms) -> Subscription:
        assert self.client is not None
        settings = self.settings
        first = "0" if settings.start == "earliest" else "$"
        if settings.group is None:
            if first == "$":
                # The last id now: `$` would be another one with each request.
                try:
                    newest = await self.client.xrevrange(settings.stream, count=1)
                except ResponseError as error:
                    raise Refused(f"redis: {error}") from error
                first = _text(newest[0][0]) if newest else "0"
            return RedisSubscription(self, first)
        try:
            await self.client.xgroup_create(settings.stream, settings.group, first, mkstream=True)
        except ResponseError as error:
            if not str(error).startswith(_GROUP_EXISTS):
                raise
        return RedisGroupSubscription(self)


class RedisSubscription(Subscription):
    """Without a group: its position is its own."""

    def __init__(self, connector: RedisConnector, last: str) -> None:
        self._settings = connector.settings
        self._client = connector.connect(connector.settings.timeout_s)
        self._last = last
        self._field = connector.settings.field.encode()

    async def fetch(self, most: int, max_bytes: int, wait_s: float) -> Messages:
        count = min(most, COUNT_AT_ONCE)
        found = await self._read(count, max(1, int(wait_s * 1000)))
        messages = Messages()
        for id, fields in found:
            if fields is not None:
                messages.add(id, fields.get(self._field, b""))
        return messages

    async def _read(self, count: int, block_ms: int) -> Entries:
        answer = await self._client.xread({self._settings.stream: self._last}, count, block_ms)
        entries = _entries(answer)
        if entries:
            self._last = entries[-1][0].decode()
        return entries

    async def close(self) -> None:
        await self._client.aclose()


class RedisGroupSubscription(RedisSubscription):
    def __init__(self, connector: RedisConnector) -> None:
        super().__init__(connector, _NEW)
        assert self._settings.group is not None
        self._group = self._settings.group
        self._ack_ms = max(1, parse_time_us(self._settings.ack_time) // 1000)
        # Beside the one that a read keeps busy. Its own: that of the connector may be closed by then, and
        # redis-py would open it again for good.
        self._aside = connector.connect(0.0)
        self._waiting: set[bytes] = set()
        self._claim_from: Any = "0-0"

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    async def _read(self, count: int, block_ms: int) -> Entries:
        settings = self._settings
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + block_ms / 1000
        while True:
            # What others gave back, or left; then what is new.
            claimed = await self._aside.xautoclaim(
                settings.stream,
                self._group,
                settings.consumer,
                self._ack_ms,
                self._claim_from,
                count,
            )
            # One call looks at some of those that are pending, and says where the next one goes on.
            self._claim_from = claimed[0]
            entries: Entries = claimed[1]
            if not entries:
                left_ms = int((ends_s - loop.time()) * 1000)
                # Not longer than a NACK may wait for somebody to look at it.
                answer = await self._client.xreadgroup(
                    self._group,
                    settings.consumer,
                    {settings.stream: _NEW},
                    count,
                    max(1, min(left_ms, LOOK_MS)),
                )
                entries = _entries(answer)
            if entries or loop.time() >= ends_s:
                self._waiting.update(id for id, fields in entries if fields is not None)
                return entries

    async def ack(self, ids: list[bytes]) -> Failures:
        failures = self._unknown(ids)
        known = [id for row, id in enumerate(ids) if row not in failures]
        if known:
            await self._aside.xack(self._settings.stream, self._group, *known)
            self._waiting.difference_update(known)
        return failures

    async def nack(self, ids: list[bytes]) -> Failures:
        failures = self._unknown(ids)
        known = [id for row, id in enumerate(ids) if row not in failures]
        if known:
            await self._give_back(known)
        return failures

    def _unknown(self, ids: list[bytes]) -> Failures:
        return {row: UNKNOWN_ID for row, id in enumerate(ids) if id not in self._waiting}

    async def _give_back(self, ids: list[bytes]) -> None:
        """As if nobody had touched them for long: the next reader claims them."""
        settings = self._settings
        await self._aside.xclaim(
            settings.stream,
            self._group,
            settings.consumer,
            0,
            list(ids),
            idle=self._ack_ms + 1,
            justid=True,
        )
        self._waiting.difference_update(ids)

    async def close(self) -> None:
        try:
            if self._waiting:
                await self._give_back(list(self._waiting))
        finally:
            await self._aside.aclose()
            await super().close()


# How soon a reader that waits for new messages finds one that was given back.
LOOK_MS: Final = 2_000


def _text(id: Any) -> str:
    return id.decode() if isinstance(id, bytes) else str(id)


def _entries(answer: Any) -> Entries:
    """Of the one stream that was asked for. RESP2 has a list here, RESP3 a mapping of lists of lists."""
    if not answer:
        return []
    if isinstance(answer, dict):
        (entries,) = answer.values()
        return [one for batch in entries for one in batch]
    found: Entries = answer[0][1]
    return found


CONNECTOR: Final = RedisConnector
