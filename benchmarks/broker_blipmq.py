"""BlipMQ load: pipelined publishes, POLL and ACK, fan-out to many subscriptions.

Counts deliveries by their bytes: the order of the messages is known, so is the size of each delivery.
"""

import selectors
import socket
import time

from benchmarks.broker_load import (
    DISTINCT,
    RECEIVE_BYTES,
    TIMEOUT_S,
    Sizes,
    Watermark,
    connect,
    make_messages,
    receive_exactly,
)
from penstock.wire.blipmq import frames as wire
from penstock.wire.blipmq.batch import (
    encode_acks,
    encode_messages,
    encode_polls,
    pack_consecutive,
)

KEY = "dev-key"
ACK_BYTES = 21
PONG_BYTES = 13
# POLLs on their way together. Two windows are under way at a time.
WINDOW = 4_096
# One delivery test publishes this much and then collects it: below the capacity of a subscription.
BACKLOG = 3 * DISTINCT
# The publisher of a fan-out is this far before the slowest subscriber at most.
AHEAD = 30_000
STEP = 2_000


def login(connection: socket.socket) -> socket.socket:
    connection.sendall(wire.encode_hello(1) + wire.encode_auth(2, KEY))
    answer = receive_exactly(connection, 2 * ACK_BYTES)
    if answer != wire.encode_ack(1, 0) + wire.encode_ack(2, 0):
        raise ConnectionError(f"the login was refused: {answer!r}")
    return connection


def barrier(connection: socket.socket, number: int) -> None:
    """Everything sent before has been carried out; any refusal before it is an error here."""
    connection.sendall(wire.encode_ping(number))
    answer = receive_exactly(connection, PONG_BYTES)
    if answer != wire.encode_pong(number):
        raise ConnectionError(f"the server answered {answer.hex(' ')}")


def subscribe(connection: socket.socket, topic: str, qos: int) -> int:
    connection.sendall(wire.encode_subscribe(3, topic.encode(), qos))
    answer = receive_exactly(connection, ACK_BYTES)
    if answer[4] != wire.ACK:
        raise ConnectionError(f"SUBSCRIBE was refused: {answer!r}")
    return wire.decode_ack_reply(answer[wire.HEADER_BYTES :])


class Publisher:
    """One connection that publishes all messages to a topic with one QoS, over and over."""

    def __init__(self, port: int, topic: str, qos: int, with_login: bool = True) -> None:
        self.topic = topic
        self.connection = connect(port)
        if with_login:
            login(self.connection)
        self.messages = make_messages()
        raw_topic = topic.encode()
        ids = pack_consecutive(1, STEP)
        self._slices = [
            encode_messages(raw_topic, qos, self.messages[at : at + STEP], ids)
            for at in range(0, DISTINCT, STEP)
        ]
        self._blob = b"".join(self._slices)
        self.sizes = Sizes(self.messages, wire.HEADER_BYTES + wire.PUBLISH_OVERHEAD + len(topic))
        self.sent = 0

    def publish(self, rounds: int) -> None:
        """All messages so many times; returns when the server has taken them."""
        for _ in range(rounds):
            self.connection.sendall(self._blob)
        self.sent += rounds * DISTINCT
        barrier(self.connection, self.sent)

    def publish_step(self) -> None:
        self.connection.sendall(self._slices[self.sent % DISTINCT // STEP])
        self.sent += STEP


def publish_rate(publisher: Publisher, rounds: int, watermark: Watermark | None) -> float:
    """Messages per second until the server has taken all, or with a watermark, until all are durable."""
    start = publisher.sent
    begin = time.perf_counter()
    publisher.publish(rounds)
    if watermark is not None:
        watermark.wait(publisher.topic, publisher.sent)
    return (publisher.sent - start) / (time.perf_counter() - begin)


def settle(publisher: Publisher, watermark: Watermark) -> None:
    """What a QoS0 run left on its way to the disk is no burden for the next run."""
    watermark.wait(publisher.topic, publisher.sent)


# --- POLL and ACK -----------------------------------------------------------------------------------


def delivery_rate(port: int, topic: str, cycles: int, watermark: Watermark) -> tuple[float, float]:
    """Messages per second that one connection polls and acknowledges, and the generator's CPU share.

    Publishing is not timed.
    """
    publisher = Publisher(port, topic, wire.QOS_AT_LEAST_ONCE)
    publisher.sent = watermark.of(topic)
    with publisher.connection, login(connect(port)) as consumer:
        subscription = subscribe(consumer, topic, wire.QOS_AT_LEAST_ONCE)
        took = used = 0.0
        for cycle in range(cycles):
            publisher.publish(BACKLOG // DISTINCT)
            watermark.wait(topic, publisher.sent)
            barrier(consumer, 1)
            # Visible to us a moment before the subscription hears of it.
            time.sleep(0.05)
            cpu = time.process_time()
            took += _collect(consumer, subscription, publisher.sizes, cycle * BACKLOG)
            used += time.process_time() - cpu
    return cycles * BACKLOG / took, used / took


def _collect(consumer: socket.socket, subscription: int, sizes: Sizes, first: int) -> float:
    windows = [(first + at, min(WINDOW, BACKLOG - at)) for at in range(0, BACKLOG, WINDOW)]
    polls = encode_polls(subscription, 1, WINDOW)
    poll_bytes = len(polls) // WINDOW
    acks = [encode_acks(subscription, pack_consecutive(at + 1, size)) for at, size in windows]
    asked = 0
    begin = time.perf_counter()
    for number, (at, size) in enumerate(windows):
        while asked < min(number + 2, len(windows)):
            consumer.sendall(polls[: windows[asked][1] * poll_bytes])
            asked += 1
        left = sizes.bytes_of(at, size)
        while left:
            received = len(consumer.recv(min(left, RECEIVE_BYTES)))
            if not received:
                raise ConnectionError("the server closed the connection")
            left -= received
        consumer.sendall(acks[number])
    barrier(consumer, 2)
    return time.perf_counter() - begin


# --- fan-out ----------------------------------------------------------------------------------------


class _Subscriber:
    """Polls what it knows to be there; a PING behind the POLLs tells when they are all answered."""

    def __init__(self, port: int, topic: str, sizes: Sizes) -> None:
        self.connection = login(connect(port))
        self._subscription = subscribe(self.connection, topic, wire.QOS_AT_MOST_ONCE)
        self._polls = encode_polls(self._subscription, 1, WINDOW)
        self._poll_bytes = len(self._polls) // WINDOW
        self._sizes = sizes
        self._size = 0
        self._round = 0
        self._pong = b""
        self._tail = b""
        self.count = 0

    def poll(self, published: int) -> None:
        """Asks for what was published, unless an answer is awaited."""
        wanted = min(published - self.count, WINDOW)
        if self._pong or not wanted:
            return
        self._round += 1
        self._pong = wire.encode_pong(self._round)
        self.connection.sendall(
            self._polls[: wanted * self._poll_bytes] + wire.encode_ping(self._round)
        )

    def receive(self, published: int) -> None:
        data = self.connection.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._size += len(data)
        self._tail = (self._tail + data)[-PONG_BYTES:]
        if self._tail == self._pong:
            self._pong = b""
            self._size -= PONG_BYTES
            self.count = self._sizes.count_of(self._size)
            self.poll(published)

    def check(self, total: int) -> None:
        """Exactly what was published has come, not a byte more."""
        if self._size != self._sizes.bytes_of(0, total):
            raise ConnectionError(f"{self._size} bytes delivered for {total} messages")


def fan_out_rate(port: int, topic: str, subscriptions: int, rounds: int) -> float:
    """Deliveries per second, all subscriptions together, while one connection publishes."""
    publisher = Publisher(port, topic, wire.QOS_AT_MOST_ONCE)
    subscribers = [_Subscriber(port, topic, publisher.sizes) for _ in range(subscriptions)]
    total = rounds * DISTINCT
    with selectors.DefaultSelector() as selector:
        for subscriber in subscribers:
            selector.register(subscriber.connection, selectors.EVENT_READ, subscriber)
        begin = time.perf_counter()
        slowest = 0
        while slowest < total:
            while publisher.sent < total and publisher.sent - slowest + STEP <= AHEAD:
                publisher.publish_step()
            for subscriber in subscribers:
                subscriber.poll(publisher.sent)
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"fan-out stands still at {slowest} of {total}")
            for key, _ in ready:
                key.data.receive(publisher.sent)
            slowest = min(subscriber.count for subscriber in subscribers)
        took = time.perf_counter() - begin
    for subscriber in subscribers:
        subscriber.check(total)
        subscriber.connection.close()
    publisher.connection.close()
    return subscriptions * total / took
