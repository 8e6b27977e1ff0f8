"""What a session and the server know of each other. Values and interfaces only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# How many bytes the frame has that begins at `start` of the buffer; 0 while that cannot be told. For
# frames behind a length this is penstock.wire.primitives.frame_size.
FrameSize = Callable[[bytes, int, int], int]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Of one stream. `pending_bytes` is what may be published and not yet durable."""

    prelogin_frame_bytes: int = 64 * 1024
    failed_logins: int = 10
    pending_bytes: int = 8 * 1024 * 1024


class Stream(Protocol):
    """The server's side of a conversation, as a session sees it."""

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

    def fail(self) -> None:
        """Inside an exception that is a defect of ours: logs it and ends the connection at once."""
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
    """A conversation, as the server sees it. Everything is called on the event loop."""

    protocol: str

    def receive(self, data: bytes) -> None: ...
    def end_of_input(self) -> None: ...
    def writable(self) -> None: ...
    def closed(self) -> None: ...
    def drain(self) -> None: ...
    def busy(self) -> bool: ...
    def held_bytes(self) -> int: ...
