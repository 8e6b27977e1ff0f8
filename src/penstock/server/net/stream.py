"""One stream of bytes with its session: gathers what is written, keeps its budget, pauses and resumes.

A TCP connection has one stream, a QUIC connection many (quic/stream.py). A stream knows no socket and
no TLS: its connection (connection.py) carries the bytes. Writes of one turn of the loop go out
together. The connection gets new bytes only while it takes them all; the rest waits here, where it is
counted.
"""

import logging
from typing import Final

from mypy_extensions import mypyc_attr

from penstock.server.net.hub import Hub
from penstock.sessions.stream import Session

# A session with more to send continues when fewer bytes than this wait for the peer: a few round trips.
CONGESTED_BYTES: Final = 1024 * 1024
# Reasons to stop reading that belong to the stream; a session has others.
PEER_READS_NOTHING: Final = "peer_reads_nothing"
NO_MEMORY: Final = "buffered_bytes_total"
# Output may use half of a stream's budget: the other half is for one largest frame coming in.
OUTPUT_SHARE: Final = 0.5

logger = logging.getLogger(__name__)


@mypyc_attr(allow_interpreted_subclasses=True)
class Carrier:
    """What a stream asks of its connection. As it stands: a lost connection, so that stream and connection
    leave no cycle behind."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.closing = True
        self.is_lost = True

    def local_address(self) -> str:
        return ""

    def certificate(self) -> bytes:
        return b""

    def unsent_bytes(self) -> int:
        return 0

    def undecided_bytes(self) -> int:
        return 0

    def login_failed(self) -> int:
        return 0

    def send(self, parts: list[bytes]) -> None:
        """Does nothing, like all methods here: the connection is gone."""

    def drop(self, reason: str, what: str) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def logged_in(self) -> None: ...
    def fail(self) -> None: ...
    def close(self) -> None: ...
    def say_goodbye(self) -> None: ...
    def abort(self) -> None: ...
    def drain(self) -> None: ...
    def busy(self) -> bool:
        return False

    def finished(self) -> bool:
        return True


class NetStream:
    """The Stream that a session sees."""

    __slots__ = (
        "_behind",
        "_blocked",
        "_congested",
        "_connection",
        "_held",
        "_hub",
        "_out",
        "_out_bytes",
        "_pauses",
        "_reading",
        "_session",
        "_stall_mark",
        "_unflushed",
        "ended",
    )

    def __init__(self, connection: Carrier, hub: Hub) -> None:
        self._connection = connection
        self._hub = hub
        self._session: Session | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._unflushed = False
        self._reading = False
        self._blocked = False  # the connection takes no more
        self._congested = False  # the session knows, and waits for `writable`
        self._held = 0
        self._pauses: set[str] = set()
        self._stall_mark = 0
        self._behind = False  # the session continues in a later turn
        self.ended = False  # the peer sends no more

    # --- what the connection calls ----------------------------------------------------------------

    @property
    def has_session(self) -> bool:
        return self._session is not None

    @property
    def paused(self) -> bool:
        return bool(self._pauses)

    @property
    def empty(self) -> bool:
        """The kernel has taken everything that was written."""
        return not self._out and not self._blocked

    def begin(self, session: Session) -> None:
        self._session = session

    def receive(self, data: bytes) -> None:
        assert self._session is not None
        try:
            self._session.receive(data)
        except Exception:  # a bug: this connection ends, the others continue
            self._connection.fail()

    def end_of_input(self) -> None:
        self.ended = True
        assert self._session is not None
        try:
            self._session.end_of_input()
        except Exception:  # as above
            self._connection.fail()

    def block(self) -> None:
        self._blocked = True

    def unblock(self) -> None:
        self._blocked = False
        self.flush()

    def lost(self) -> None:
        """The connection is gone; everything held for it is released."""
        self._out = []
        self._out_bytes = 0
        session, self._session = self._session, None
        if session is not None:
            try:
                session.closed()
            except Exception:  # a bug here must not leave the shared byte count wrong
                logger.exception("%s: the end of the session failed", self.peer)
        self._connection = Carrier(self.peer)
        self._hub.wait_no_more(self)
        self._hub.hold(-self._held)
        self._held = 0

    def go_on(self) -> None:
        """A turn for the session that gave way."""
        self._behind = False
        self._tell_writable()

    def drain(self) -> None:
        if self._session is None:
            self.close()
        else:
            self._session.drain()

    def busy(self) -> bool:
        return self._session is not None and self._session.busy()

    # --- what the session calls -------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def local(self) -> str:
        return self._connection.local_address()

    @property
    def congested(self) -> bool:
        self._congested = self._congested or self._waiting_bytes() > CONGESTED_BYTES
        return self._congested

    def give_way(self) -> bool:
        if not self._hub.turn.over():
            return False
        if not self._behind:
            self._behind = True
            self._hub.go_on_later(self)
        return True

    def write(self, data: bytes) -> None:
        if self._connection.closing:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        self.flush_later()

    def close(self) -> None:
        self._connection.close()

    def pause(self, reason: str) -> None:
        if self._connection.closing:
            return
        if not self._pauses:
            self._connection.pause_reading()
        if reason not in self._pauses:
            self._hub.counters.paused[reason] += 1
            self._pauses.add(reason)

    def resume(self, reason: str) -> None:
        if reason in self._pauses:
            self._pauses.remove(reason)
            if not self._pauses:
                self._connection.resume_reading()

    def fail(self) -> None:
        self._connection.fail()

    @property
    def certificate(self) -> bytes:
        return self._connection.certificate()

    def login_failed(self) -> int:
        return self._connection.login_failed()

    def logged_in(self) -> None:
        self._connection.logged_in()

    # --- out --------------------------------------------------------------------------------------

    def flush_later(self) -> None:
        if not self._unflushed:
            self._unflushed = True
            if not self._reading:
                self._hub.outbox.add(self)

    def read_begins(self) -> None:
        """What is written from now on goes out with `read_ends`: a turn of the loop earlier."""
        self._reading = True

    def read_ends(self) -> None:
        self._reading = False
        if self._unflushed:
            self.flush()
        else:
            self.balance()

    def flush(self) -> None:
        """One write of all that is queued, unless the kernel still has enough."""
        self._unflushed = False
        if self._connection.is_lost:
            return
        if self._out and not self._blocked:
            parts, self._out, self._out_bytes = self._out, [], 0
            self._connection.send(parts)
        if self._connection.closing and not self._out:
            self._connection.say_goodbye()
        self.balance()
        if self._congested and self._waiting_bytes() <= CONGESTED_BYTES:
            self._congested = False
            self._tell_writable()

    def _tell_writable(self) -> None:
        if self._session is None or self._connection.closing:
            return
        try:
            self._session.writable()
        except Exception:  # a bug: this connection ends, the others continue
            self._connection.fail()

    # --- limits -----------------------------------------------------------------------------------

    def _waiting_bytes(self) -> int:
        """Bytes that wait for the peer to read."""
        if not self._blocked:  # the kernel took all that was sent
            return self._out_bytes
        return self._out_bytes + self._connection.unsent_bytes()

    def balance(self) -> None:
        """Counts the bytes held for this peer, and stops or resumes reading accordingly."""
        if self._connection.is_lost:
            return
        waiting = self._waiting_bytes()
        held = waiting + self._connection.undecided_bytes()
        if self._session is not None:
            held += self._session.held_bytes()
        change, self._held = held - self._held, held
        if change:
            self._hub.hold(change)
        if not held and not self._pauses:
            return
        if self._connection.closing or self._unflushed:
            return  # what is queued may well go out at the end of this turn
        most = self._hub.limits.buffered_bytes_per_connection * OUTPUT_SHARE
        if waiting > most:
            self.pause(PEER_READS_NOTHING)
        elif waiting <= most * OUTPUT_SHARE:
            self.resume(PEER_READS_NOTHING)
        if held and self._hub.over_budget() and NO_MEMORY not in self._pauses:
            self.pause(NO_MEMORY)
            self._hub.wait_for_memory(self)
            self._stall_mark = held
            self._hub.loop.call_later(self._hub.limits.stall_time_s, self._stalled)

    def memory_is_back(self) -> None:
        self.resume(NO_MEMORY)

    def _stalled(self) -> None:
        """True if all memory is in use and this peer neither reads its answers nor completes its frame."""
        if self._connection.closing or NO_MEMORY not in self._pauses:
            return
        self.balance()
        if self._held >= self._stall_mark:
            self._connection.drop(
                NO_MEMORY, "too slow while limits.buffered_bytes_total is used up"
            )
            self._connection.abort()
        else:
            self._stall_mark = self._held
            self._hub.loop.call_later(self._hub.limits.stall_time_s, self._stalled)

    def clear_pauses(self) -> None:
        for reason in list(self._pauses):
            self.resume(reason)
