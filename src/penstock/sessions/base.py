"""What every session shares: it finds the frames in the input, carries out requests in order, sends answers
in order, limits the bytes that are not durable, and keeps the states of a session as a table.

The session of a protocol defines how its bytes split and what each request does. It knows no sockets: the
server gives it a Stream (stream.py). Nothing here knows a protocol.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

from penstock.broker.counters import ProtocolCounters
from penstock.sessions.stream import FrameSize, SessionLimits, Stream
from penstock.wire.errors import PeerError

Request = TypeVar("Request")
# What a callback gets: a token or a pending change.
Done = TypeVar("Done")

# --- the states of a session ----------------------------------------------------------------------

# States. Waiting: the next request has to wait. Ending: the input is closed, and the requests that are
# buffered are still carried out and answered.
READING: Final = 0
WAITING: Final = 1
ENDING: Final = 2
ENDING_WAITING: Final = 3
OVER: Final = 4

# One request in so many (a power of two) looks at the clock. A request takes 0.1 ms at the most, and a read
# with few requests never looks.
REQUESTS_BETWEEN_LOOKS: Final = 4

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
    """Bytes that were received and not yet carried out: `buffer` from `position` on, and later reads.

    A large frame arrives in many reads: they are kept apart and joined once, when the frame is complete.
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
        """Joins the later reads to the rest of `buffer`, which holds no complete frame any more.

        Returns False while the frame that begins there is still incomplete.
        """
        if self.buffer:
            rest = self.buffer[self.position :]
            self._needed = 0
            if rest:
                self._later.insert(0, rest)
                self._later_bytes += len(rest)
                # At least one byte more: the bytes that are there hold no complete frame.
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
    """Stops reading from a peer while too many bytes that it sent are not durable or not answered."""

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
        # Reading resumes at half the limit: directly below it, it would stop again with the next read.
        if self._paused and self._pending <= self._limit // 2:
            self._paused = False
            self._stream.resume("pending")


class Slot:
    """The place of one answer in the order of answers. `size`: bytes that it adds to the pending."""

    __slots__ = ("reply", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.reply: bytes | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class BaseSession(Generic[Request]):
    """One session. A protocol implements `split`, `perform` and the other methods of that section."""

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
        # The error that makes the rest of the input unreadable.
        self._broken: PeerError | None = None
        # Answers that wait for one before them, and answers of this loop turn that can be sent.
        self._slots: deque[Slot] = deque()
        self._out: list[bytes] = []
        # Guards against entering `work` from a callback that is called at once.
        self._working = False
        self._paused = False
        # Requests are left for a later turn of the event loop.
        self._gave_way = False

    # --- what a protocol adds ---------------------------------------------------------------------

    def split(self, buffer: bytes, start: int) -> tuple[list[Request], int, PeerError | None]:
        """All complete frames from `start` on: requests, where the rest begins, and what is wrong there."""
        raise NotImplementedError

    def perform(self, request: Request) -> bool:
        """Carries out a request. False if the request has to wait: the session calls again after `go_on`,
        which may be called for any reason, so `perform` checks again whether the request has to wait."""
        raise NotImplementedError

    def gathered(self) -> bool:
        """Called when all complete requests are carried out: appends the batches that they filled.

        Returns True if there was such a batch, since a request that waited for it may be ready now.
        """
        return False

    def last_words(self, error: PeerError) -> bytes:
        """The answer to a peer whose bytes break the protocol; empty for none."""
        return b""

    def has_open_work(self) -> bool:
        """Whether an operation that has no slot is still running and may send an answer."""
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

    def peer_reset(self, code: int) -> None:
        """On QUIC: the peer gave up its side. What it has sent is carried out, and the session ends."""
        self.end_of_input()

    def peer_stopped(self, code: int) -> None:
        """On QUIC: the peer does not want the answers. What it has sent is carried out, and the
        session ends."""
        self.end_of_input()

    def writable(self) -> None:
        self.go_on()

    def closed(self) -> None:
        self._on(CLOSE)
        self._requests = []
        self._next = 0
        self._gave_way = False
        self.left()

    def drain(self) -> None:
        """The server stops. The broker refuses durable work then; other requests are carried out."""
        self.work()

    def busy(self) -> bool:
        """Whether a close would lose a request or an answer."""
        return self.state != OVER and (
            self.waiting or self._gave_way or bool(self._slots) or self.has_open_work()
        )

    def held_bytes(self) -> int:
        """Bytes received and not carried out; the server has a limit for the sum over all sessions."""
        waiting = self.inbox.position if self._next < len(self._requests) else 0
        return len(self.inbox) + waiting

    # --- requests ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return self.state in (WAITING, ENDING_WAITING)

    def _on(self, event: int) -> None:
        self.state = _NEXT[self.state][event]

    def go_on(self) -> None:
        """An answer or a change completed: the request that waits is tried again."""
        self._on(GO_ON)
        self.work()

    def work(self) -> None:
        """Carries out the buffered requests, until one has to wait or the turn is over."""
        if self._working:
            return
        self._working = True
        self._gave_way = False
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
                look = self._next % REQUESTS_BETWEEN_LOOKS == REQUESTS_BETWEEN_LOOKS - 1
                if look and self.stream.give_way():
                    self._gave_way = True
                    break
                if self._slots:
                    self.send()  # answers that are complete are sent before the session waits
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
        """Stops reading while requests wait: for the answers before them, for the peer, or for a turn."""
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
        """Ends the session once the input is closed and every request is answered."""
        if self.state == ENDING and not self._paused and not self.busy():
            if self._broken is not None:
                words = self.last_words(self._broken)
                if words:
                    self._out.append(words)
            self.close()

    def close(self) -> None:
        """Ends the session; complete answers are still sent."""
        self.send()
        self._on(CLOSE)
        self.stream.close()

    # --- answers ----------------------------------------------------------------------------------

    def answer(self, reply: bytes) -> None:
        """Sends an answer, in the order of the requests: after those that are not complete yet."""
        if self._slots:
            self.hold(len(reply)).reply = reply
        else:
            self._out.append(reply)

    def hold(self, size: int) -> Slot:
        """Reserves the place of an answer that `settle` gives later. `size` bytes count as pending until it
        is sent: bytes that were published, or bytes kept in memory for the peer."""
        slot = Slot(size)
        self._slots.append(slot)
        self.pending.add(size)
        return slot

    def settle(self, slot: Slot, reply: bytes) -> None:
        slot.reply = reply
        self.go_on()

    def guarded(self, callback: Callable[[Done], None]) -> Callable[[Done], None]:
        """Wraps a callback. An exception in it ends the session: its peer would wait forever."""

        def call(done: Done) -> None:
            try:
                callback(done)
            except Exception:  # a bug of the server: this connection ends, the others continue
                self.stream.fail()

        return call

    def answers_given(self) -> int:
        """How many answers this turn has made or reserved and not sent: grows within `perform`."""
        return len(self._slots) + len(self._out)

    def last_slot(self) -> Slot | None:
        return self._slots[-1] if self._slots else None

    def answers_are_open(self) -> bool:
        """Whether an answer before this one is not complete yet."""
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
