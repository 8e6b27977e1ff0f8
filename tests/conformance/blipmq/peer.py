"""BlipMQ by hand: every frame as bytes, built without Penstock's encoder, and a peer that speaks them.

A mistake in the encoder of Penstock cannot hide here: nothing of penstock.wire is imported. The refusals
carry the numbers of the protocol table (length field, code and text length) as they stand there.
"""

import socket
import time
from collections.abc import Callable
from itertools import count
from typing import NamedTuple, Self

from kit.live_server import WAIT_S, LiveServer, RawPeer

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL = range(1, 10)
ALL_ONES = 0xFFFF_FFFF_FFFF_FFFF
MAX_LENGTH = 16 * 1024 * 1024
# Before login: 64 KiB and a header.
MAX_LOGIN_LENGTH = 64 * 1024 + 13
KEY = "dev-key"


def x(text: str) -> bytes:
    """Bytes from hex; blanks and line ends do not count."""
    return bytes.fromhex(text)


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def frame(kind: int, cid: int, payload: bytes = b"") -> bytes:
    return (9 + len(payload)).to_bytes(4, "big") + bytes([kind]) + u64(cid) + payload


def hello(cid: int, version: int = 1) -> bytes:
    return frame(HELLO, cid, u16(version))


def auth(cid: int, key: str = KEY) -> bytes:
    raw = key.encode()
    return frame(AUTH, cid, u16(len(raw)) + raw)


def message(cid: int, topic: str, body: bytes, qos: int = 1) -> bytes:
    """A PUBLISH, to the server or as a delivery."""
    raw = topic.encode()
    return frame(PUBLISH, cid, bytes([qos]) + u16(len(raw)) + raw + body)


def subscribe(cid: int, topic: str, qos: int = 1) -> bytes:
    raw = topic.encode()
    return frame(SUBSCRIBE, cid, u16(len(raw)) + raw + bytes([qos]))


def ack(cid: int, subscription: int) -> bytes:
    """From a client `cid` is the delivery tag."""
    return frame(ACK, cid, u64(subscription))


def poll(cid: int, subscription: int) -> bytes:
    return frame(POLL, cid, u64(subscription))


def ping(cid: int) -> bytes:
    return frame(PING, cid)


def pong(cid: int) -> bytes:
    return frame(PONG, cid)


class Nack(NamedTuple):
    """A line of the protocol's table: length field, code and text length in hex, text."""

    length: int
    start: str
    text: str

    def frame(self, cid: int) -> bytes:
        head = self.length.to_bytes(4, "big") + bytes([NACK])
        return head + u64(cid) + x(self.start) + self.text.encode()


HELLO_ALREADY = Nack(0x24, "0190 0017", "HELLO already performed")
INVALID_HELLO = Nack(0x22, "0190 0015", "invalid HELLO payload")
UNSUPPORTED_VERSION = Nack(0x29, "01AA 001C", "unsupported protocol version")
HELLO_NOT_PERFORMED = Nack(0x20, "0190 0013", "HELLO not performed")
ALREADY_AUTHENTICATED = Nack(0x22, "0190 0015", "already authenticated")
INVALID_AUTH = Nack(0x21, "0190 0014", "invalid AUTH payload")
INVALID_KEY = Nack(0x1C, "0191 000F", "invalid API key")
UNAUTHENTICATED = Nack(0x1C, "0191 000F", "unauthenticated")
INVALID_PUBLISH = Nack(0x24, "0190 0017", "invalid PUBLISH payload")
EMPTY_TOPIC = Nack(0x18, "0190 000B", "empty topic")
INVALID_QOS = Nack(0x1E, "0190 0011", "invalid QoS value")
INVALID_SUBSCRIBE = Nack(0x26, "0190 0019", "invalid SUBSCRIBE payload")
INVALID_ACK = Nack(0x20, "0190 0013", "invalid ACK payload")
INVALID_POLL = Nack(0x21, "0190 0014", "invalid POLL payload")
ZERO_SUBSCRIPTION = Nack(0x2D, "0190 0020", "subscription_id must be non-zero")
UNKNOWN_TAG = Nack(0x31, "0194 0024", "unknown subscription or delivery tag")


def nack(cid: int, code: int, text: str) -> bytes:
    """A refusal whose text is not fixed."""
    raw = text.encode()
    return frame(NACK, cid, u16(code) + u16(len(raw)) + raw)


def write_failed(cid: int, reason: str) -> bytes:
    return nack(cid, 500, "durable publish failed: " + reason)


class BlipMQPeer(RawPeer):
    """A socket that knows frames. Silence is proved by a POLL of subscription 0: answers come in order,
    and its refusal waits for nothing, while a PONG waits until what was published is on disk."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = count(0x5000_0000_0000_0000)

    def login(self, key: str = KEY) -> Self:
        self.ask(hello(1), ack(1, 0))
        self.ask(auth(2, key), ack(2, 0))
        return self

    def expect(self, *answers: bytes) -> None:
        for answer in answers:
            got = self.frame()
            assert got == answer, f"got {got[:200].hex(' ')}, expected {answer[:200].hex(' ')}"

    def ask(self, data: bytes, *answers: bytes) -> None:
        """Sends, and gets exactly these answers and nothing behind them."""
        self.send(data)
        self.expect(*answers)

    def quiet(self) -> None:
        """Nothing was sent to us: the next frame is the refusal of a senseless POLL."""
        number = next(self._numbers)
        self.ask(poll(number, 0), ZERO_SUBSCRIPTION.frame(number))

    def subscribe(self, topic: str, qos: int = 1) -> int:
        number = next(self._numbers)
        self.send(subscribe(number, topic, qos))
        answer = self.frame()
        assert answer[:-8] == x("00000011 05") + u64(number), answer.hex(" ")
        return int.from_bytes(answer[-8:], "big")

    def poll_once(self, subscription: int, cid: int = 9) -> bytes | None:
        """What one POLL brings, or None."""
        number = next(self._numbers)
        self.send(poll(cid, subscription) + poll(number, 0))
        answer = self.frame()
        if answer == ZERO_SUBSCRIPTION.frame(number):
            return None
        self.expect(ZERO_SUBSCRIPTION.frame(number))
        return answer

    def poll(self, subscription: int, cid: int = 9) -> bytes:
        """Polls until there is a delivery: a message can be had once it is on disk."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            answer = self.poll_once(subscription, cid)
            if answer is not None:
                return answer
        raise AssertionError(f"nothing came for subscription {subscription} in {WAIT_S:.0f} s")

    def poll_bodies(self, subscription: int, number: int, prefix: int) -> list[bytes]:
        """The bodies of the next deliveries; `prefix` bytes stand in front of each."""
        return [self.poll(subscription)[prefix:] for _ in range(number)]


def until(condition: Callable[[], bool], what: str) -> None:
    """Asks again and again, for a bounded time."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}"


def queued(server: LiveServer, subscription: int) -> int:
    """Messages that a POLL could have now."""
    found = server.call(server.server.broker.subscriptions.all)
    return next(one.queued_messages for one in found if one.id == subscription)


def until_queued(server: LiveServer, subscription: int, number: int) -> None:
    what = f"{number} messages for subscription {subscription}"
    until(lambda: queued(server, subscription) == number, what)


def until_dropped(server: LiveServer, number: int) -> None:
    """So many messages went for lack of capacity, on the whole server."""
    counters = server.server.broker.subscriptions.counters
    until(lambda: counters.dropped_capacity == number, f"{number} messages dropped")


def until_alone(server: LiveServer, connections: int = 0) -> None:
    """The server has noticed that the others are gone."""
    until(lambda: len(server.server.hub.connections) == connections, "connections gone")
