"""Sessions that have much to do take turns: each callback is short, and nobody is left behind."""

import asyncio
from collections.abc import Callable
from typing import cast

from penstock.server.net.hub import ConnectionLimits, Hub
from penstock.server.net.stream import Carrier, NetStream
from penstock.sessions.stream import Session
from penstock.turns import TURN_S, Turn


class Loop:
    """Callbacks of one turn after the other, and a clock that work moves on."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> float:
        """Gives how long it took."""
        began_s = self.now_s
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()
        return self.now_s - began_s


class Open(Carrier):
    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.closing = False
        self.is_lost = False


class Worker:
    """A session of many steps of more than half a turn each."""

    def __init__(self, loop: Loop, stream: NetStream, name: str, done: list[str]) -> None:
        self.left = 6
        self._loop, self._stream, self._name, self._done = loop, stream, name, done

    def writable(self) -> None:
        while self.left and not self._stream.give_way():
            self.left -= 1
            self._done.append(self._name)
            self._loop.now_s += 0.6 * TURN_S

    def closed(self) -> None:
        self.left = 0


def test_sessions_take_turns_of_bounded_length() -> None:
    loop, done = Loop(), list[str]()
    hub = Hub(cast(asyncio.AbstractEventLoop, loop), ConnectionLimits(), {})
    hub.turn = Turn(loop.time)
    workers: list[Worker] = []
    streams: list[NetStream] = []
    for name in "abc":
        stream = NetStream(Open(), hub)
        worker = Worker(loop, stream, name, done)
        stream.begin(cast(Session, worker))
        workers.append(worker)
        streams.append(stream)
    for worker in workers:
        hub.turn.begin()
        worker.writable()
    assert len(done) == 6 and len(loop.soon) == 1, "one callback for all that are left"
    streams[1].lost()  # while its turn is still to come
    turns = 0
    while loop.soon:
        assert loop.turn() <= 1.5 * TURN_S
        turns += 1
    assert "".join(done) == "aabbcc" + "aacc" * 2
    assert 4 <= turns <= 6


def test_callbacks_that_begin_no_turn_leave_the_work_to_one() -> None:
    loop, done = Loop(), list[str]()
    hub = Hub(cast(asyncio.AbstractEventLoop, loop), ConnectionLimits(), {})
    hub.turn = Turn(loop.time)
    stream = NetStream(Open(), hub)
    worker = Worker(loop, stream, "a", done)
    stream.begin(cast(Session, worker))
    hub.turn.begin()
    hub.turn.end()
    worker.writable()
    worker.writable()
    assert done == [] and len(loop.soon) == 1
    while loop.soon:
        loop.turn()
    assert done == ["a"] * 6
