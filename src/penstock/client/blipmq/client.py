"""A client for BlipMQ servers, ours or not: publish in batches, subscribe, acknowledge.

    async with BlipMQClient("127.0.0.1:9092", key="dev-key") as client:
        await client.publish_many("demo", [b"one", b"two"])
        await client.flush()

The protocol does not answer a successful PUBLISH. `flush` sends a PING after the messages: servers
answer in order, so the PONG means that everything before it was processed. With Penstock it means more:
each message is on disk, or its refusal has arrived. Leaving the block flushes. Unconfirmed messages are
not sent again automatically.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from penstock.client.blipmq.subscription import PollRound, Subscription
from penstock.client.blocking import BlockingFace
from penstock.client.channel import Channel
from penstock.client.connection import Connection
from penstock.client.errors import (
    ClientError,
    ConnectionLost,
    PublishRefused,
    Refusal,
    refused,
)
from penstock.client.settings import ClientSettings, parse_server
from penstock.client.tally import Tally
from penstock.wire.blipmq.batch import encode_messages, pack_consecutive
from penstock.wire.blipmq.frames import (
    ACK,
    FRAME_TYPES,
    HELLO,
    NACK,
    PONG,
    QOS_AT_LEAST_ONCE,
    QOS_AT_MOST_ONCE,
    BlipMQProtocolError,
    check_message,
    check_topic,
    decode_ack_reply,
    decode_nack,
    encode_auth,
    encode_hello,
    encode_ping,
    encode_subscribe,
)
from penstock.wire.blipmq.split import Control, PublishRun, split_replies

DEFAULT_KEY: Final = "dev-key"
# A refused ACK bears the delivery tag instead of an id of ours. Tags count messages of one
# subscription from 1, so ids from here on cannot be mistaken for one.
FIRST_ID: Final = 1 << 40
# Refusals kept for one flush; the rest are only counted, or a bad loop would fill the memory.
MAX_REFUSALS_KEPT: Final = 1_000

_QOS_LEVELS: Final = (QOS_AT_MOST_ONCE, QOS_AT_LEAST_ONCE)


class BlipMQClient:
    """One connection. Use it from one event loop; `blocking` wraps it for use without one."""

    def __init__(
        self, server: str, *, key: str | None = DEFAULT_KEY, settings: ClientSettings | None = None
    ) -> None:
        """No key: the certificate in the settings' TLS context tells the server who this is."""
        if key is not None:
            # A key that cannot be sent is a ValueError here, not a failed login later.
            encode_auth(0, key)
        self._key = key
        self._connection = Connection(parse_server(server), settings or ClientSettings(), self)
        self._next_id = FIRST_ID
        # ACK or PONG that is due, by correlation id, with what was asked.
        self._due: dict[int, tuple[asyncio.Future[int], str]] = {}
        self._rounds: deque[PollRound] = deque()
        self._subscriptions: list[Subscription] = []
        self.tally = Tally()
        # The part that a PONG or a lost connection has settled: how many published, how many refused.
        self._settled = 0
        self._settled_refusals = 0
        self._loss: ConnectionLost | None = None
        self._refusals: list[Refusal] = []
        self._refusal_count = 0
        self.refused_acks = 0

    @classmethod
    def blocking(
        cls, server: str, *, key: str | None = DEFAULT_KEY, settings: ClientSettings | None = None
    ) -> BlockingFace:
        return BlockingFace(cls(server, key=key, settings=settings))

    async def __aenter__(self) -> "BlipMQClient":
        await self._connection.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            open_work = self.tally.published > self._settled or self._refusals or self._loss
            if error is None and open_work:
                await self.flush()
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes without a flush. Acknowledgements and messages that are written already still go out."""
        for subscription in self._subscriptions:
            subscription.settle()
        await self._connection.close()

    @property
    def reconnects(self) -> int:
        return self._connection.reconnects

    @property
    def settings(self) -> ClientSettings:
        return self._connection.settings

    # ---- publishing ----

    async def publish(self, topic: str, value: bytes, qos: int = QOS_AT_LEAST_ONCE) -> int:
        """Send one message; its id, by which a refusal names it. Many: `publish_many`."""
        return (await self.publish_many(topic, (value,), qos))[0]

    async def publish_many(
        self, topic: str, values: Sequence[bytes], qos: int = QOS_AT_LEAST_ONCE
    ) -> range:
        """Send all with one write; their ids. Returns before the server has confirmed: `flush`."""
        name = _checked(topic, qos)
        channel = self._connection.live or await self._connection.channel()
        count = len(values)
        if count == 0:
            return range(0)
        first = self.take_ids(count)
        try:
            frames = encode_messages(name, qos, list(values), pack_consecutive(first, count))
        except OverflowError:
            for value in values:
                check_message(name, len(value))
            raise
        self.tally.published += count
        channel.write(frames)
        if channel.choked:
            await self._connection.drain(channel)
        return range(first, first + count)

    async def flush(self) -> None:
        """Return when all that was published before is processed.

        PublishRefused if some of it was refused since the last flush; ConnectionLost if the
        connection ended since then with messages unconfirmed.
        """
        self._raise_loss()
        upto = self.tally.published
        await self._ask(encode_ping, "flush")
        self._settle(upto)
        # The PONG of a new connection would not cover messages that were lost with the old one.
        self._raise_loss()
        if self._refusals:
            refusals, self._refusals = self._refusals, []
            count, self._refusal_count = self._refusal_count, 0
            raise PublishRefused(refusals, count)

    async def ping(self) -> None:
        """Return when the server answered."""
        await self._ask(encode_ping, "PING")

    def _settle(self, upto: int) -> None:
        """A PONG arrived for the first `upto` messages: those that were not refused are stored."""
        answered = max(0, upto - self._settled)
        refused_of_them = self.tally.refused - self._settled_refusals
        self.tally.confirmed += max(0, answered - refused_of_them)
        self._settled += answered
        self._settled_refusals = self.tally.refused

    def _raise_loss(self) -> None:
        loss, self._loss = self._loss, None
        if loss is not None:
            raise loss

    # ---- subscribing ----

    async def subscribe(
        self, topic: str, qos: int = QOS_AT_LEAST_ONCE, *, auto_ack: bool = True
    ) -> Subscription:
        """Messages published from now on. `auto_ack` acknowledges a batch when the next is asked
        for; without it, call `ack`. A topic may be subscribed to more than once."""
        name = _checked(topic, qos)
        subscription_id = await self._ask(
            lambda number: encode_subscribe(number, name, qos), f"SUBSCRIBE {topic}"
        )
        subscription = Subscription(self, self._connection, topic, qos, auto_ack)
        subscription.granted(subscription_id)
        self._subscriptions.append(subscription)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """It is no longer restored after a reconnect. The protocol has no frame to end a subscription."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def take_ids(self, count: int) -> int:
        """The first of `count` correlation ids that were never used here."""
        first = self._next_id
        self._next_id += count
        return first

    def begin_round(self, poll_round: PollRound) -> None:
        """Deliveries up to the PONG of this round belong to its subscription, as answers come in
        the order of the requests."""
        self._rounds.append(poll_round)

    # ---- asking ----

    async def _ask(self, encode: Callable[[int], bytes], what: str) -> int:
        channel = self._connection.live or await self._connection.channel()
        return await self._connection.answer(channel, self._request(channel, encode, what), what)

    def _request(
        self, channel: Channel, encode: Callable[[int], bytes], what: str
    ) -> "asyncio.Future[int]":
        number = self.take_ids(1)
        frame = encode(number)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._due[number] = (future, what)
        channel.write(frame)
        return future

    # ---- what the connection calls ----

    async def greet(self, channel: Channel) -> None:
        """HELLO and AUTH in one write, then every subscription anew, with a new id."""
        key = self._key
        asked = [self._request(channel, encode_hello, "HELLO")]
        if key is not None:
            asked.append(
                self._request(channel, lambda number: encode_auth(number, key), "the login")
            )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        for subscription in tuple(self._subscriptions):
            await self._subscribe_again(channel, subscription)

    async def _subscribe_again(self, channel: Channel, subscription: Subscription) -> None:
        name, qos = subscription.topic.encode(), subscription.qos
        what = f"SUBSCRIBE {subscription.topic} after the reconnect"
        answer = self._request(channel, lambda number: encode_subscribe(number, name, qos), what)
        try:
            subscription.granted(await answer)
        except ConnectionLost:
            raise
        except ClientError as error:
            subscription.fail(error)
            self.forget(subscription)

    def receive(self, data: bytes) -> int:
        operations, consumed, error = split_replies(data, 0, len(data))
        for operation in operations:
            if isinstance(operation, PublishRun):
                self._deliver(operation)
            elif isinstance(operation, Control):
                self._control(operation)
        if error is not None:
            raise error
        return consumed

    def lost(self, error: ClientError) -> None:
        refused_of_them = self.tally.refused - self._settled_refusals
        unconfirmed = self.tally.published - self._settled - refused_of_them
        self._settled = self.tally.published
        self._settled_refusals = self.tally.refused
        if isinstance(error, ConnectionLost):
            error.unconfirmed = unconfirmed
            if unconfirmed and not any(what == "flush" for _, what in self._due.values()):
                self._loss = error
        due, self._due = self._due, {}
        for future, _ in due.values():
            _fail(future, error)
        rounds, self._rounds = self._rounds, deque()
        for poll_round in rounds:
            poll_round.fail(error)

    # ---- answers ----

    def _deliver(self, run: PublishRun) -> None:
        if self._rounds and self._rounds[0].take(run):
            return
        # A server that delivers late: only the topic shows which subscription it is for.
        for subscription in self._subscriptions:
            if subscription.topic == run.topic_name:
                subscription.hold(run)
                return
        raise BlipMQProtocolError(f"delivery for topic {run.topic_name!r} without a POLL", 0)

    def _control(self, frame: Control) -> None:
        if frame.frame_type == PONG:
            self._pong(frame.correlation_id)
        elif frame.frame_type == ACK:
            self._answer(frame.correlation_id, decode_ack_reply(frame.payload))
        elif frame.frame_type == NACK:
            self._nack(frame)
        elif frame.frame_type >= HELLO:
            name = FRAME_TYPES[frame.frame_type]
            raise BlipMQProtocolError(f"a server must not send {name}", 0)

    def _pong(self, number: int) -> None:
        for poll_round in self._rounds:
            if poll_round.ping_id == number:
                self._rounds.remove(poll_round)
                poll_round.finish()
                return
        self._answer(number, 0)

    def _answer(self, number: int, result: int) -> None:
        """An answer that arrives after its time-out is not an error."""
        future, _ = self._due.pop(number, (None, ""))
        if future is not None and not future.done():
            future.set_result(result)

    def _nack(self, frame: Control) -> None:
        nack = decode_nack(frame.payload)
        number = frame.correlation_id
        future, what = self._due.pop(number, (None, ""))
        if future is not None:
            _fail(future, refused(nack.code, nack.text, what))
            return
        for poll_round in self._rounds:
            if poll_round.first_id <= number <= poll_round.ping_id:
                poll_round.refused(refused(nack.code, nack.text, "POLL"))
                if number == poll_round.ping_id:
                    self._pong(number)
                return
        if number < FIRST_ID:
            # An ACK that came too late, or twice: the message comes again or is settled already.
            self.refused_acks += 1
            return
        self.tally.refused += 1
        self._refusal_count += 1
        if len(self._refusals) < MAX_REFUSALS_KEPT:
            self._refusals.append(Refusal(number, nack.code, nack.text))


def connect_blipmq(
    server: str, *, key: str | None = DEFAULT_KEY, settings: ClientSettings | None = None
) -> BlockingFace:
    """`with connect_blipmq("127.0.0.1:9092") as client: client.publish("demo", b"hi")`."""
    return BlipMQClient.blocking(server, key=key, settings=settings)


def _checked(topic: str, qos: int) -> bytes:
    name = topic.encode("utf-8")
    check_topic(name)
    if qos not in _QOS_LEVELS:
        raise ValueError(f"QoS {qos}, BlipMQ has 0 and 1")
    return name


def _fail(future: "asyncio.Future[int]", error: ClientError) -> None:
    if not future.done():
        future.set_exception(error)
        # Marked as retrieved: a cancelled caller does not read it.
        future.exception()
