"""What every conversation shares: frames found in what arrives, requests carried out in order, answers
in order, a budget for what is not durable, and the life of the conversation as a table.

A protocol's session says how its bytes split and what each request does. It knows no sockets: the server
gives it a Stream (stream.py). Nothing here knows a protocol.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

from penstock.broker.counters import ProtocolCounters
from penstock.sessions.stream import FrameSize, SessionLimits, Stream
from penstock.wire.errors import PeerError

Request = TypeVar("Request")
# What a callback is told: a token or a change.
Done = TypeVar("Done")

# --- the life of a conversation -------------------------------------------------------------------

# States. Waiting: the first request that is left has to wait. Ending: nothing more comes in, what is
# there is carried out and answered.
READING: Final = 0
WAITING: Final = 1
ENDING: Final = 2
ENDING_WAITING: Final = 3
OVER: Final = 4

# Events.
WAIT: Final = 0
GO_ON: Final = 1
INPUT_ENDS: Final = 2
CLOSE: Final = 3

_NEXT: Final[tuple[tuple[int, int, int, int], ...]] = (
    # WAIT           GO_ON    INPUT_ENDS      CLOSE
    (WAITING, READING, ENDING, OVER),  # READING
    (WAITING, READING, ENDING_WAITING, OVER),  # WAITING
    (ENDING_WAITING, ENDING, ENDING, OVER),  # ENDING
    (ENDING_WAITING, ENDING, ENDING_WAITING, OVER),  # ENDING_WAITING
    (OVER, OVER, OVER, OVER),  # OVER
)


class Inbox:
    """What was received and not yet carried out: `buffer` from `position` on, and what came later.

    A large frame arrives in many reads: they are kept apart and joined once, when it is complete.
    """

    def __init__(self, frame_size: FrameSize) -> None:
        self.buffer = b""
        self.position = 0
        self._frame_size = frame_size
        self._later: list[bytes] = []
        self._later_bytes = 0
        self._needed = 0

    def __len__(self) -> int:
        return len(self.buffer) - self.position + self._later_bytes

    def add(self, data: bytes) -> None:
        self._later.append(data)
        self._later_bytes += len(data)

    def load(self) -> bool:
        """Joins what came later to the rest of `buffer`, in which no frame is complete any more.

        False while the frame that it begins still is not.
        """
        if self.buffer:
            rest = self.buffer[self.position :]
            self._needed = 0
            if rest:
                self._later.insert(0, rest)
                self._later_bytes += len(rest)
                # One byte more at least: of these alone no frame could be made.
                self._needed = max(self._frame_size(rest, 0, len(rest)), len(rest) + 1)
            self.buffer = b""
            self.position = 0
        if not self._later_bytes or self._later_bytes < self._needed:
            return False
        self.buffer = self._later[0] if len(self._later) == 1 else b"".join(self._later)
        self._later = []
        self._later_bytes = 0
        return True


class PendingBytes:
    """Stops reading from a peer while too much of what it sent is not durable, or not answered."""

    def __init__(self, stream: Stream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._pending = 0
        self._paused = False

    @property
    def any(self) -> bool:
        return self._pending > 0

    def add(self, size: int) -> None:
        self._pending += size
        if self._pending > self._limit and not self._paused:
            self._paused = True
            self._stream.pause("pending")

    def done(self, size: int) -> None:
        self._pending -= size
        # Half the limit: reading on at once would stop again at once.
        if self._paused and self._pending <= self._limit // 2:
            self._paused = False
            self._stream.resume("pending")


class Slot:
    """The place of one answer in the order of answers. `size` is what it counts as pending."""

    __slots__ = ("reply", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.reply: bytes | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class BaseSession(Generic[Request]):
    """One conversation. A protocol says what `split`, `perform` and the rest below them do."""

    protocol: str = ""

    def __init__(
        self,
        stream: Stream,
        limits: SessionLimits,
        counters: ProtocolCounters,
        frame_size: FrameSize,
    ) -> None:
        self.stream = stream
        self.limits = limits
        self.counters = counters
        self.inbox = Inbox(frame_size)
        self.pending = PendingBytes(stream, limits.pending_bytes)
        self.state = READING
        self._requests: list[Request] = []
        self._next = 0
        # Why the bytes cannot be followed any more.
        self._broken: PeerError | None = None
        # Answers behind one that is not known yet, and answers of this turn that can go out.
        self._slots: deque[Slot] = deque()
        self._out: list[bytes] = []
        # Guards against entering `work` from a callback that is called at once.
        self._working = False
        self._paused = False

    # --- what a protocol adds ---------------------------------------------------------------------

    def split(self, buffer: bytes, start: int) -> tuple[list[Request], int, PeerError | None]:
        """All complete frames from `start` on: requests, where the rest begins, and what is wrong there."""
        raise NotImplementedError

    def perform(self, request: Request) -> bool:
        """Carries a request out; False when it has to wait. Then it is asked again after `go_on`, which
        may come for any reason: it looks again whether it still has to wait."""
        raise NotImplementedError

    def gathered(self) -> bool:
        """Everything there is was carried out: hands on what was put together meanwhile.

        True when there was something, and who waited for it may go on by now.
        """
        return False

    def last_words(self, error: PeerError) -> bytes:
        """What a peer is told whose bytes cannot be followed; empty for nothing."""
        return b""

    def has_open_work(self) -> bool:
        """Whether something is under way that may still have an answer, beside the slots."""
        return False

    def left(self) -> None:
        """The peer is gone."""

    # --- the server's side ------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if self.state == OVER or self._broken is not None:
            return
        self.inbox.add(data)
        self.work()

    def end_of_input(self) -> None:
        self._on(INPUT_ENDS)
        self._close_when_done()

    def writable(self) -> None:
        self.go_on()

    def closed(self) -> None:
        self._on(CLOSE)
        self._requests = []
        self._next = 0
        self.left()

    def drain(self) -> None:
        """The broker refuses durable work by itself while it stops; everything else goes on."""
        self.work()

    def busy(self) -> bool:
        """Whether a close would cut something off."""
        return self.state != OVER and (self.waiting or bool(self._slots) or self.has_open_work())

    def held_bytes(self) -> int:
        """What was received and is not carried out; the server has a limit for all together."""
        waiting = self.inbox.position if self._next < len(self._requests) else 0
        return len(self.inbox) + waiting

    # --- requests ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return self.state in (WAITING, ENDING_WAITING)

    def _on(self, event: int) -> None:
        self.state = _NEXT[self.state][event]

    def go_on(self) -> None:
        """Something was answered or done: who waits looks whether it still has to."""
        self._on(GO_ON)
        self.work()

    def work(self) -> None:
        """Carries out what is there, until something has to be waited for."""
        if self._working:
            return
        self._working = True
        try:
            self._perform_all()
            while self.gathered():
                self._perform_all()
        finally:
            self._working = False
        self.send()
        self._pause_if_behind()
        self._close_when_done()

    def _perform_all(self) -> None:
        while self.state in (READING, ENDING) and not self.stream.congested:
            if self._next < len(self._requests):
                if self._slots:
                    self.send()  # what is answered already keeps nobody waiting
                if self.perform(self._requests[self._next]):
                    self._next += 1
                else:
                    self._on(WAIT)
            elif self._broken is not None or not self._split_more():
                break

    def _split_more(self) -> bool:
        """Finds the next complete frames. False when there are none."""
        inbox = self.inbox
        while inbox.buffer or inbox.load():
            requests, inbox.position, self._broken = self.split(inbox.buffer, inbox.position)
            self._requests = requests
            self._next = 0
            if self._broken is not None:
                self.counters.errors["framing"] += 1
                self._on(INPUT_ENDS)
            if requests or self._broken is not None:
                return True
            if not inbox.load():
                break
        return False

    def _pause_if_behind(self) -> None:
        """Stops reading while requests wait: for the answers before them, or for the peer."""
        behind = self.state != OVER and (
            self.waiting or self._next < len(self._requests) or self.stream.congested
        )
        if behind != self._paused:
            self._paused = behind
            if behind:
                self.stream.pause("answer")
            else:
                self.stream.resume("answer")

    def _close_when_done(self) -> None:
        """Nothing more comes in, and everything that did is answered."""
        if self.state == ENDING and not self._paused and not self.busy():
            if self._broken is not None:
                words = self.last_words(self._broken)
                if words:
                    self._out.append(words)
            self.close()

    def close(self) -> None:
        """Ends the conversation; what was answered still goes out."""
        self.send()
        self._on(CLOSE)
        self.stream.close()

    # --- answers ----------------------------------------------------------------------------------

    def answer(self, reply: bytes) -> None:
        """In the order of the requests: behind answers that are not known yet."""
        if self._slots:
            self.hold(len(reply)).reply = reply
        else:
            self._out.append(reply)

    def hold(self, size: int) -> Slot:
        """The place of an answer that comes later, with `settle`. `size` bytes count as pending until it
        goes out: of what was published, or of what is kept here for the peer."""
        slot = Slot(size)
        self._slots.append(slot)
        self.pending.add(size)
        return slot

    def settle(self, slot: Slot, reply: bytes) -> None:
        slot.reply = reply
        self.go_on()

    def guarded(self, callback: Callable[[Done], None]) -> Callable[[Done], None]:
        """A callback of this conversation. One that raises ends it: its peer would wait for ever."""

        def call(done: Done) -> None:
            try:
                callback(done)
            except Exception:  # a defect of ours: this connection ends, the others go on
                self.stream.fail()

        return call

    def answers_are_open(self) -> bool:
        """Whether an answer before this one is not known yet."""
        return bool(self._slots)

    def send(self) -> None:
        """Sends the answers that are ready, in order."""
        size = 0
        while self._slots:
            reply = self._slots[0].reply
            if reply is None:
                break
            size += self._slots.popleft().size
            self._out.append(reply)
        if size:
            self.pending.done(size)
        if self._out:
            if self.state != OVER:
                self.stream.write(b"".join(self._out))
            self._out = []
