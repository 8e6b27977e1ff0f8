"""What a session and the server know of each other. Values and interfaces only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# Returns the size of the frame that begins at `start` of the buffer, or 0 while too few bytes are there.
# For frames with a length prefix this is penstock.wire.primitives.frame_size.
FrameSize = Callable[[bytes, int, int], int]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one stream. `pending_bytes`: bytes that may be published and not yet durable."""

    prelogin_frame_bytes: int = 64 * 1024
    failed_logins: int = 10
    pending_bytes: int = 8 * 1024 * 1024


def host_of(peer: str) -> str:
    """The address of a peer, without its port."""
    return peer.rpartition(":")[0]


class Stream(Protocol):
    """The connection, as a session sees it."""

    @property
    def peer(self) -> str:
        """Address of the peer, for logs."""
        ...

    @property
    def local(self) -> str:
        """The address of ours that the peer has connected to."""
        ...

    @property
    def certificate(self) -> bytes:
        """The certificate that the peer has shown and TLS has checked, in DER form; empty: none."""
        ...

    @property
    def congested(self) -> bool:
        """True while the peer does not read what was sent; then `Session.writable` is called."""
        ...

    def give_way(self) -> bool:
        """True when this turn of the event loop has taken long enough: the session stops, and
        `Session.writable` is called in a later turn, behind the others."""
        ...

    def write(self, data: bytes) -> None:
        """Queues bytes; they go out once per loop turn."""
        ...

    def close(self) -> None:
        """Closes after the queued bytes are sent."""
        ...

    def fail(self) -> None:
        """Called while an unexpected exception is handled: logs it and ends the connection at once."""
        ...

    def pause(self, reason: str) -> None:
        """Stops reading until every reason is withdrawn."""
        ...

    def resume(self, reason: str) -> None: ...

    def login_failed(self) -> int:
        """Counts a failed login; returns how many have failed on this connection."""
        ...

    def logged_in(self) -> None:
        """The peer is logged in: the login time limit no longer applies."""
        ...


class Session(Protocol):
    """A session, as the server sees it. Everything is called on the event loop."""

    protocol: str

    def receive(self, data: bytes) -> None: ...
    def end_of_input(self) -> None: ...
    def writable(self) -> None: ...
    def closed(self) -> None: ...
    def drain(self) -> None: ...
    def busy(self) -> bool: ...
    def held_bytes(self) -> int: ...
