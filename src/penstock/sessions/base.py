"""What a session and the server know of each other, and how a session keeps incomplete frames."""

from dataclasses import dataclass
from typing import Protocol

from penstock.wire.primitives import frame_size


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Per connection. `pending_bytes` is what may be published and not yet durable."""

    prelogin_frame_bytes: int = 64 * 1024
    failed_logins: int = 10
    pending_bytes: int = 8 * 1024 * 1024


class Outlet(Protocol):
    """The server's side of a connection, as a session sees it."""

    @property
    def peer(self) -> str:
        """Address of the peer, for logs."""
        ...

    @property
    def congested(self) -> bool:
        """The peer does not read what it was sent; `Session.writable` tells when it does again."""
        ...

    def write(self, data: bytes) -> None:
        """Queues bytes; they go out once per loop turn."""
        ...

    def close(self) -> None:
        """Closes after what is queued has gone out."""
        ...

    def pause(self, reason: str) -> None:
        """Stops reading until every reason given is taken back."""
        ...

    def resume(self, reason: str) -> None: ...

    def login_failed(self) -> int:
        """Counts; gives how many logins have failed on this connection."""
        ...

    def logged_in(self) -> None:
        """Ends the time that a peer has to log in."""
        ...


class Session(Protocol):
    """A conversation. Everything is called on the event loop."""

    protocol: str

    def receive(self, data: bytes) -> None: ...
    def end_of_input(self) -> None: ...
    def writable(self) -> None: ...
    def closed(self) -> None: ...
    def drain(self) -> None: ...
    def busy(self) -> bool: ...
    def held_bytes(self) -> int: ...


class Inbox:
    """What was received and not yet carried out: `buffer` from `position` on, and what came later.

    A large frame arrives in many reads: they are kept apart and joined once, when it is complete.
    """

    def __init__(self) -> None:
        self.buffer = b""
        self.position = 0
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
                self._needed = max(frame_size(rest, 0, len(rest)), len(rest) + 1)
            self.buffer = b""
            self.position = 0
        if not self._later_bytes or self._later_bytes < self._needed:
            return False
        self.buffer = self._later[0] if len(self._later) == 1 else b"".join(self._later)
        self._later = []
        self._later_bytes = 0
        return True


class PendingBytes:
    """Stops reading from a peer while too much of what it sent is not durable."""

    def __init__(self, outlet: Outlet, limit: int) -> None:
        self._outlet = outlet
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
            self._outlet.pause("pending")

    def done(self, size: int) -> None:
        self._pending -= size
        # Half the limit: reading on at once would stop again at once.
        if self._paused and self._pending <= self._limit // 2:
            self._paused = False
            self._outlet.resume("pending")
