"""MQTT 5, by aiomqtt (paho). Needs the extra `mqtt`.

    WRITE   PUBLISH; with `qos` 1 accepted when the broker has acknowledged it, with 0 when it is sent
    read    a client of its own for each reader. With `group` they share the messages ($share); with
            `client_id` the broker keeps what comes while the one reader is away
    ACK     PUBACK, with `qos` 1
    id      u32 of the subscription, u64 count of its messages: a redelivery has another one

No FETCH, no NACK, no transactions. Of the library's inside its paho client is used: acknowledgements of
ours, the reason codes of PUBACK (aiomqtt drops them), and the broker's limit of messages in flight.
"""

import asyncio
import logging
import secrets
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiomqtt
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.broker.outside import UNKNOWN_ID, Abilities, Failures, Messages, ReaderTerms
from penstock.log.batch.view import Headers
from penstock.server.connectors.connector import (
    MOST_READERS,
    Connector,
    Outage,
    Refused,
    Subscription,
)
from penstock.server.connectors.settings import MqttRoute, Outside, login_of

# A connection that died in silence is found after about twice this.
KEEP_ALIVE_S: Final = 2
# Messages with QoS 1 that the broker may send without an acknowledgement.
RECEIVE_MAXIMUM: Final = 256
# With QoS 0 the broker does not wait: behind so many, messages are dropped and counted.
MAX_UNASKED: Final = 10_000
# The session of a client id stays at the broker until it comes back.
FOR_EVER: Final = 0xFFFF_FFFF

# What happens to connections is told by the route, within bounds.
_library = logging.getLogger(f"{__name__}.aiomqtt")
_library.setLevel(logging.CRITICAL)

# Of a string; bytes that are no UTF-8 take three each, as the sign that replaces them.
MOST_TEXT_BYTES: Final = 0xFFFF
UNFIT_HEADER: Final = "mqtt: a header has a zero byte, or more than 21845 bytes"


class _TlsSocket(ssl.SSLSocket):
    """The library leaves it open where the handshake fails."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


class Client(aiomqtt.Client):
    """Publishes whole batches, and gives messages to a queue of ours."""

    def __init__(
        self, connector: "MqttConnector", identifier: str | None, properties: Properties
    ) -> None:
        """`identifier`: of a session that the broker keeps."""
        settings = connector.settings
        login = login_of(settings.url, connector.password())
        parts = urlsplit(login.address)
        secure = settings.has_tls
        context = connector.trust() if secure else None
        if context is not None:
            context.sslsocket_class = _TlsSocket
        super().__init__(
            parts.hostname or "127.0.0.1",
            parts.port or (8883 if secure else 1883),
            username=login.user,
            password=login.password,
            identifier=identifier or f"penstock-{secrets.token_hex(8)}",
            protocol=aiomqtt.ProtocolVersion.V5,
            timeout=settings.timeout_s * 0.9,
            keepalive=KEEP_ALIVE_S,
            clean_start=identifier is None,
            logger=_library,
            max_inflight_messages=RECEIVE_MAXIMUM,
            properties=properties,
            tls_context=context,
        )
        self._client.manual_ack_set(True)
        # Publishes without an acknowledgement that the broker takes.
        self._window = RECEIVE_MAXIMUM
        # Of this batch: message ids to rows, and what was refused.
        self._rows: dict[int, int] = {}
        self._early: dict[int, str | None] = {}
        self._failures: Failures = {}
        self._all_reported = asyncio.Event()
        self.came: deque[tuple[int, int, bytes]] = deque()
        self.woken = asyncio.Event()
        self.dropped = 0

    async def open(self) -> None:
        await self.__aenter__()

    async def shut(self) -> None:
        try:
            if self._connected.done() and not self._connected.cancelled():
                await self.__aexit__(None, None, None)
        finally:
            # Where it never got so far, or the broker is gone: the library leaves its socket open.
            self._client._sock_close()
            if self._disconnected.done():
                self._disconnected.exception()  # it is known

    @property
    def lost(self) -> bool:
        return self._disconnected.done()

    def reason(self) -> str:
        error = self._disconnected.exception() if self._disconnected.done() else None
        return "the connection is gone" if error is None else str(error)

    # --- writing ----------------------------------------------------------------------------------

    async def publish_all(
        self, settings: MqttRoute, values: list[bytes], headers: list[Headers] | None
    ) -> Failures:
        """One batch at a time."""
        self._rows, self._early, self._failures = {}, {}, {}
        self._all_reported.clear()
        for row, value in enumerate(values):
            if len(self._rows) >= self._window:
                await self._until_reported()
            if headers is not None and any(map(_unfit, headers[row])):
                self._failures[row] = UNFIT_HEADER
                continue
            properties = _properties(headers[row]) if headers is not None else None
            info = self._client.publish(
                settings.topic, value, settings.qos, settings.retain, properties
            )
            if info.rc not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_QUEUE_SIZE):
                raise Outage(f"mqtt: {self.reason()}")
            if info.mid in self._early:
                self._note(row, self._early.pop(info.mid))
            elif settings.qos:
                self._rows[info.mid] = row
        await self._until_reported()
        return self._failures

    async def _until_reported(self) -> None:
        while self._rows:
            self._all_reported.clear()
            await self._until(self._all_reported)

    async def _until(self, event: asyncio.Event) -> None:
        """Until the event, or the end of the connection."""
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((waiting, self._disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._disconnected.done():
            raise Outage(f"mqtt: {self.reason()}")

    def _note(self, row: int, failure: str | None) -> None:
        if failure is not None:
            self._failures[row] = failure

    def _on_publish(
        self, client: Any, userdata: Any, mid: int, reason_code: Any, properties: Any
    ) -> None:
        failure = f"mqtt: {reason_code}" if reason_code.is_failure else None
        if mid in self._rows:
            self._note(self._rows.pop(mid), failure)
            if not self._rows:
                self._all_reported.set()
        elif mid not in self._early and len(self._early) < RECEIVE_MAXIMUM:
            self._early[mid] = failure

    def _on_connect(
        self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any = None
    ) -> None:
        self._window = min(getattr(properties, "ReceiveMaximum", RECEIVE_MAXIMUM), RECEIVE_MAXIMUM)
        super()._on_connect(client, userdata, flags, reason_code, properties)

    # --- reading ----------------------------------------------------------------------------------

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        if message.qos == 0 and len(self.came) >= MAX_UNASKED:
            self.dropped += 1
            return
        self.came.append((message.mid, message.qos, message.payload))
        self.woken.set()

    def acknowledge(self, mid: int) -> None:
        if self.lost or self._client.ack(mid, 1) != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise Outage(f"mqtt: {self.reason()}")

    async def until_message(self) -> None:
        self.woken.clear()
        await self._until(self.woken)


def _new_properties(packet: int) -> Properties:
    return Properties(packet)  # type: ignore[no-untyped-call]  # paho has few types


def _unfit(pair: tuple[bytes, bytes]) -> bool:
    """The broker would end the connection for it (MQTT 5 section 1.5.4)."""
    return any(b"\0" in text or len(text) * 3 > MOST_TEXT_BYTES for text in pair)


def _properties(pairs: Headers) -> Properties | None:
    if not pairs:
        return None
    made = _new_properties(PacketTypes.PUBLISH)
    made.UserProperty = [
        (name.decode("utf-8", "replace"), value.decode("utf-8", "replace")) for name, value in pairs
    ]
    return made


class MqttConnector(Connector):
    outages = (OSError, aiomqtt.MqttError, asyncio.TimeoutError)
    refusals = (MqttConnectError, ValueError)

    def __init__(self, settings: Outside, environment: Mapping[str, str]) -> None:
        super().__init__(settings, environment)
        assert isinstance(settings, MqttRoute)
        self.settings = settings
        self._client: Client | None = None

    @classmethod
    def abilities(cls, settings: Outside) -> Abilities:
        assert isinstance(settings, MqttRoute)
        return Abilities(ack=settings.qos > 0)

    @classmethod
    def most_readers(cls, settings: Outside) -> int:
        assert isinstance(settings, MqttRoute)
        return MOST_READERS if settings.client_id is None else 1

    async def open(self) -> None:
        self._client = Client(self, None, _new_properties(PacketTypes.CONNECT))
        await self._client.open()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.shut()

    async def write(self, values: list[bytes], headers: list[Headers] | None) -> Failures:
        assert self._client is not None
        return await self._client.publish_all(self.settings, values, headers)

    async def subscribe(self, terms: ReaderTerms) -> Subscription:
        settings = self.settings
        properties = _new_properties(PacketTypes.CONNECT)
        properties.ReceiveMaximum = min(RECEIVE_MAXIMUM, terms.max_in_flight, 65_535)
        if settings.client_id is not None:
            properties.SessionExpiryInterval = FOR_EVER
        client = Client(self, settings.client_id, properties)
        topic = settings.topic
        if settings.group is not None:
            topic = f"$share/{settings.group}/{topic}"
        try:
            await client.open()
            codes = await client.subscribe(topic, settings.qos)
            refused = [code for code in codes if getattr(code, "is_failure", False)]
            if refused:
                raise Refused(f"mqtt: {refused[0]}")
        except BaseException:
            await client.shut()
            raise
        return MqttSubscription(client, manual=settings.qos > 0)


class MqttSubscription(Subscription):
    def __init__(self, client: Client, *, manual: bool) -> None:
        self._client = client
        self._manual = manual
        self._name = secrets.token_bytes(4)
        self._count = 0
        # Message ids that wait for their acknowledgement; 0: sent with QoS 0, which needs none.
        self._waiting: dict[bytes, int] = {}

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def take_dropped(self) -> int:
        dropped, self._client.dropped = self._client.dropped, 0
        return dropped

    async def fetch(self, most: int, max_bytes: int, wait_s: float) -> Messages:
        client = self._client
        messages = Messages()
        if not client.came:
            try:
                async with asyncio.timeout(wait_s):
                    await client.until_message()
            except TimeoutError:
                return messages
        size = 0
        while client.came and len(messages) < most and (not len(messages) or size < max_bytes):
            mid, qos, value = client.came.popleft()
            self._count += 1
            id = self._name + self._count.to_bytes(8, "big")
            if self._manual:
                self._waiting[id] = mid if qos else 0
            size += len(value)
            messages.add(id, value)
        return messages

    async def ack(self, ids: list[bytes]) -> Failures:
        failures: Failures = {}
        for row, id in enumerate(ids):
            mid = self._waiting.pop(id, None)
            if mid is None:
                failures[row] = UNKNOWN_ID
            elif mid:
                self._client.acknowledge(mid)
        return failures

    async def close(self) -> None:
        await self._client.shut()


CONNECTOR: Final = MqttConnector
