"""A session without a socket: an outlet that remembers, and a peer that feeds bytes in many ways."""

from collections.abc import Callable, Iterator
from typing import Protocol

from broker.bench import Bench

from penstock.sessions.stream import Session, SessionLimits


class MakeSession(Protocol):
    def __call__(self, *, stream: "Recorder", limits: SessionLimits) -> Session: ...


class Recorder:
    """An outlet that keeps what was written. `room` bytes may wait before it is congested."""

    peer = "127.0.0.1:1"
    local = "127.0.0.1:2"

    def __init__(self, room: int | None = None) -> None:
        self.written = bytearray()
        self.is_closed = False
        self.pauses: set[str] = set()
        self.ever_paused: set[str] = set()
        self.failed_logins = 0
        self.failures = 0
        self.logins = 0
        self.room = room
        self.unread = 0
        self.most_unread = 0
        self._told = False
        self.looks = 0
        self.turn_looks: int | None = None

    @property
    def congested(self) -> bool:
        self._told = self._told or (self.room is not None and self.unread > self.room)
        return self._told

    def give_way(self) -> bool:
        """In turns of `turn_looks` looks at the clock; None: of any length."""
        self.looks += 1
        return self.turn_looks is not None and self.looks % self.turn_looks == 0

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "written after the close"
        self.written += data
        self.unread += len(data)
        self.most_unread = max(self.most_unread, self.unread)

    def close(self) -> None:
        self.is_closed = True

    def fail(self) -> None:
        self.failures += 1

    def pause(self, reason: str) -> None:
        self.pauses.add(reason)
        self.ever_paused.add(reason)

    def resume(self, reason: str) -> None:
        self.pauses.discard(reason)

    @property
    def certificate(self) -> bytes:
        return b""

    def login_failed(self) -> int:
        self.failed_logins += 1
        return self.failed_logins

    def logged_in(self) -> None:
        self.logins += 1

    def read_all(self) -> bool:
        """The peer reads everything; whether the session has to be told."""
        self.unread = 0
        was, self._told = self._told, False
        return was


class Peer:
    """The other end of a session on a bench."""

    def __init__(
        self,
        bench: Bench,
        make: MakeSession,
        limits: SessionLimits | None = None,
        room: int | None = None,
    ) -> None:
        self.bench = bench
        self.outlet = Recorder(room)
        limits = limits if limits is not None else SessionLimits()
        self.session = make(stream=self.outlet, limits=limits)

    def send(self, data: bytes) -> None:
        """One read of the server, whatever it holds."""
        self.session.receive(data)

    def ask(self, data: bytes) -> bytes:
        """Sends, lets everything happen, and gives what came back since the last time."""
        self.send(data)
        return self.answers()

    def answers(self) -> bytes:
        self.bench.settle()
        found = bytes(self.outlet.written)
        self.outlet.written.clear()
        return found

    def wait_idle(self) -> None:
        """Until the session waits for nothing, the disk included."""
        self.bench.settle()
        self.bench.wait_for(lambda: not self.session.busy())

    def drain_output(self, most_rounds: int = 10_000) -> bytes:
        """Reads like a peer that reads: again and again until nothing more comes."""
        for _ in range(most_rounds):
            if not self.outlet.read_all():
                break
            self.session.writable()
            self.bench.run_posted()
        else:
            raise AssertionError("no end of output")
        return bytes(self.outlet.written)


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    for number in range(len(data)):
        yield data[number : number + 1]


def in_sevens(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), 7):
        yield data[start : start + 7]


WAYS: tuple[Callable[[bytes], Iterator[bytes]], ...] = (whole, byte_by_byte, in_sevens)
