"""When streams are sent to: once in a turn, or right behind the completion that made them write."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from penstock.server.net.hub import ConnectionLimits, Hub
from penstock.server.net.outbox import SENT_AT_ONCE, Outbox
from penstock.server.net.stream import Carrier, NetStream


class Loop:
    """Keeps what is to be called."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, work: Callable[..., None], *args: object) -> None:
        self.soon.append(lambda: work(*args))

    call_soon_threadsafe = call_soon

    def turn(self) -> None:
        works, self.soon = self.soon, []
        for work in works:
            work()


class Sink(Carrier):
    def __init__(self) -> None:
        super().__init__("peer")
        self.closing = False
        self.is_lost = False
        self.sent: list[bytes] = []

    def send(self, parts: list[bytes]) -> None:
        self.sent.append(b"".join(parts))


class Server:
    def __init__(self, streams: int) -> None:
        self.loop = Loop()
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.outbox = Outbox(loop)
        hub = Hub(loop, ConnectionLimits(), {}, None, self.outbox)
        self.sinks = [Sink() for _ in range(streams)]
        self.streams = [NetStream(sink, hub) for sink in self.sinks]

    def write_all(self) -> None:
        for stream in self.streams:
            stream.write(b"x")
            stream.write(b"y")

    def sent(self) -> list[list[bytes]]:
        return [sink.sent for sink in self.sinks]


def test_what_is_written_in_a_turn_goes_out_together_at_its_end() -> None:
    server = Server(3)
    server.write_all()
    assert server.sent() == [[]] * 3 and len(server.loop.soon) == 1
    server.loop.turn()
    assert server.sent() == [[b"xy"]] * 3 and not server.loop.soon


def test_what_a_completion_writes_goes_out_behind_it_in_the_same_callback() -> None:
    server = Server(3)
    server.outbox.post(server.write_all)
    server.loop.turn()
    assert server.sent() == [[b"xy"]] * 3 and not server.loop.soon


def test_many_streams_are_sent_to_in_a_callback_of_their_own() -> None:
    server = Server(SENT_AT_ONCE + 1)
    server.outbox.post(server.write_all)
    server.loop.turn()
    assert not any(server.sent()) and len(server.loop.soon) == 1
    server.loop.turn()
    assert server.sent() == [[b"xy"]] * (SENT_AT_ONCE + 1)


def test_a_shared_socket_sends_behind_the_streams() -> None:
    """Once: in the callback of the completion, of the streams, or in one of its own."""
    server = Server(1)
    seen: list[list[list[bytes]]] = []

    def share() -> None:
        server.outbox.add_shared(lambda: seen.append([list(sent) for sent in server.sent()]))

    def complete() -> None:
        share()
        server.write_all()

    server.outbox.post(complete)
    server.loop.turn()
    assert seen == [[[b"xy"]]] and not server.loop.soon
    share()
    assert len(seen) == 1
    server.loop.turn()
    assert len(seen) == 2 and not server.loop.soon


def test_a_shared_socket_does_not_wait_for_many_streams() -> None:
    server = Server(SENT_AT_ONCE + 1)
    seen: list[int] = []

    def complete() -> None:
        server.outbox.add_shared(lambda: seen.append(1))
        server.write_all()

    server.outbox.post(complete)
    server.loop.turn()
    assert seen == [1] and not any(server.sent())


def test_sessions_have_a_turn_within_a_completion() -> None:
    server = Server(1)
    (stream,) = server.streams
    found: list[bool] = []
    server.outbox.post(lambda: found.append(stream.give_way()))
    server.loop.turn()
    assert found == [False] and stream.give_way()


def test_a_completion_that_fails_leaves_nothing_unsent() -> None:
    server = Server(2)

    def fail() -> None:
        server.write_all()
        raise RuntimeError("a bug")

    server.outbox.post(fail)
    with pytest.raises(RuntimeError):
        server.loop.turn()
    assert server.sent() == [[b"xy"]] * 2
    server.write_all()
    server.loop.turn()
    assert server.sent() == [[b"xy", b"xy"]] * 2
