"""BlipMQ in the request suite: publish to delivery at a steady rate, and publish, poll, ack end to end.

The subscriber repeats POLL and PING, the next when the PONG is there: BlipMQ answers a POLL that finds
nothing with silence. Like the rest of the suite the client spins (request_client.py).
"""

import time
from struct import Struct

from benchmarks.broker_blipmq import login, subscribe
from benchmarks.broker_load import TIMEOUT_S, connect
from benchmarks.request_client import receive, send
from benchmarks.request_spoken import MESSAGE, MESSAGE_BYTES
from penstock.wire.blipmq import frames as wire
from penstock.wire.blipmq.batch import encode_acks, encode_messages, encode_polls, pack_consecutive

# A message begins with its number, so that a delivery tells which publish it belongs to.
NUMBER = Struct(">Q")
FILLING = MESSAGE[NUMBER.size :]
HEAD = Struct(">IBQ")


def delivery_times(port: int, topic: str, qos: int, count: int, rate: int) -> list[float]:
    """Seconds from publish to delivery of each message."""
    raw_topic = topic.encode()
    with login(connect(port)) as publisher, login(connect(port)) as subscriber:
        subscription = subscribe(subscriber, topic, qos)
        publisher.setblocking(False)
        subscriber.setblocking(False)
        question = wire.encode_poll(1, subscription) + wire.encode_ping(2)
        sent_s: list[float] = []
        times: list[float] = []
        got = acks = b""
        subscriber.send(question)
        due_s = begin_s = time.perf_counter()
        while len(times) < count:
            now_s = time.perf_counter()
            if now_s >= due_s and len(sent_s) < count:
                message = NUMBER.pack(len(sent_s)) + FILLING
                publisher.send(wire.encode_publish(1, raw_topic, qos, message))
                sent_s.append(now_s)
                due_s += 1 / rate
            if now_s - begin_s > count / rate + TIMEOUT_S:
                raise TimeoutError(f"{len(times)} of {count} messages delivered")
            got += receive(subscriber)
            while len(got) >= HEAD.size:
                length, kind, number = HEAD.unpack_from(got)
                if len(got) < 4 + length:
                    break
                frame, got = got[: 4 + length], got[4 + length :]
                if kind == wire.PONG:
                    subscriber.send(acks + question)
                    acks = b""
                elif kind == wire.PUBLISH:
                    (at,) = NUMBER.unpack_from(frame, len(frame) - MESSAGE_BYTES)
                    times.append(time.perf_counter() - sent_s[at])
                    if qos:
                        acks = wire.encode_ack(number, subscription)
                else:
                    raise ConnectionError(f"the server answered {frame!r}")
        return times


def end_to_end_rate(port: int, topic: str, outstanding: int, time_limit_s: float) -> float:
    """Messages a second that are published, polled and acknowledged by one subscriber.

    `outstanding` is the most that is published and not yet acknowledged.
    """
    with login(connect(port)) as publisher, login(connect(port)) as subscriber:
        run = _EndToEnd(subscribe(subscriber, topic, wire.QOS_AT_LEAST_ONCE), topic, outstanding)
        publisher.setblocking(False)
        subscriber.setblocking(False)
        unsent = asking = b""
        begin = time.perf_counter()
        while True:
            took = time.perf_counter() - begin
            if took > time_limit_s + TIMEOUT_S:
                raise TimeoutError(f"{run.acknowledged} of {run.published} acknowledged")
            if not unsent and took < time_limit_s:
                unsent = run.publishes()
            if unsent:
                unsent = send(publisher, unsent)
            if not asking:
                asking = run.question()
            if asking:
                asking = send(subscriber, asking)
            run.received(receive(subscriber))
            if took >= time_limit_s and run.acknowledged == run.published and not unsent:
                return run.acknowledged / took


class _EndToEnd:
    """What is to be sent next, and what has come, by the bytes."""

    def __init__(self, subscription: int, topic: str, outstanding: int) -> None:
        self._subscription = subscription
        self._outstanding = outstanding
        messages = [MESSAGE] * outstanding
        ids = pack_consecutive(1, outstanding)
        self._publishes = encode_messages(topic.encode(), wire.QOS_AT_LEAST_ONCE, messages, ids)
        self._publish_bytes = len(self._publishes) // outstanding
        self._polls = encode_polls(subscription, 1, outstanding)
        self._poll_bytes = len(self._polls) // outstanding
        self._pong = b""
        self._got = b""
        self._delivered = 0
        self.published = 0
        self.acknowledged = 0

    def publishes(self) -> bytes:
        room = self._outstanding - (self.published - self.acknowledged)
        self.published += room
        return self._publishes[: room * self._publish_bytes]

    def question(self) -> bytes:
        """Acknowledges what has come and asks for what is published; one such round at a time."""
        wanted = self.published - self._delivered
        if self._pong or not (wanted or self._delivered > self.acknowledged):
            return b""
        first, count = self.acknowledged + 1, self._delivered - self.acknowledged
        acks = encode_acks(self._subscription, pack_consecutive(first, count)) if count else b""
        self.acknowledged = self._delivered
        self._pong = wire.encode_pong(first)
        return acks + self._polls[: wanted * self._poll_bytes] + wire.encode_ping(first)

    def received(self, data: bytes) -> None:
        self._got += data
        if self._pong and self._got.endswith(self._pong):
            deliveries, rest = divmod(len(self._got) - len(self._pong), self._publish_bytes)
            if rest:
                raise ConnectionError(f"the server answered {self._got[:100]!r}")
            self._delivered += deliveries
            self._got = self._pong = b""
