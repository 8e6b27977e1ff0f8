"""One stream of a QUIC connection with its session: NetStream, and what QUIC adds to it.

A NetStream asks a carrier to move its bytes. On QUIC every stream has a carrier of its own, which
knows its two sides and passes the bytes on to the connection (connection.py).
"""

from typing import Final

from mypy_extensions import mypyc_attr

from penstock.server.net.hub import Hub
from penstock.server.net.stream import Carrier, NetStream
from penstock.sessions.streams import StreamSession

# Bit 1 of a stream's id: one direction. Bit 0: opened by the server.
ONE_DIRECTION: Final = 2
OF_THE_SERVER: Final = 1
# A close without an error.
NO_ERROR: Final = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamOwner:
    """What a stream's carrier asks of its connection."""

    peer: str

    def local_address(self) -> str:
        raise NotImplementedError

    def write(self, stream: int, parts: list[bytes]) -> None:
        raise NotImplementedError

    def write_end(self, stream: int) -> None:
        raise NotImplementedError

    def queued_bytes(self, stream: int) -> int:
        raise NotImplementedError

    def reset(self, stream: int, code: int) -> None:
        raise NotImplementedError

    def stop(self, stream: int, code: int) -> None:
        raise NotImplementedError

    def pause(self, stream: int) -> None:
        raise NotImplementedError

    def resume(self, stream: int) -> None:
        raise NotImplementedError

    def both_sides_over(self, stream: int) -> None:
        raise NotImplementedError

    def drop(self, reason: str, what: str) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def fail(self) -> None:
        raise NotImplementedError

    def login_failed(self) -> int:
        raise NotImplementedError

    def logged_in(self) -> None:
        raise NotImplementedError


class StreamCarrier(Carrier):
    """The two sides of one stream."""

    def __init__(self, owner: StreamOwner, number: int) -> None:
        super().__init__(owner.peer)
        self.owner = owner
        self.number = number
        self.closing = False
        self.is_lost = False
        one_direction = bool(number & ONE_DIRECTION)
        ours = bool(number & OF_THE_SERVER)
        self.input_over = one_direction and ours
        self.output_over = one_direction and not ours
        self.finishing = False
        # The rest of the input is of no interest: it is dropped.
        self.stopped = False

    # --- what NetStream asks for ------------------------------------------------------------------

    def local_address(self) -> str:
        return self.owner.local_address()

    def unsent_bytes(self) -> int:
        return self.owner.queued_bytes(self.number)

    def send(self, parts: list[bytes]) -> None:
        if not self.output_over:
            self.owner.write(self.number, parts)

    def pause_reading(self) -> None:
        if not self.input_over:
            self.owner.pause(self.number)

    def resume_reading(self) -> None:
        if not self.input_over and not self.is_lost:
            self.owner.resume(self.number)

    def close(self) -> None:
        """Ends both sides; the bytes that are queued are still sent."""
        if self.closing:
            return
        self.closing = True
        self.stop(NO_ERROR)

    def say_goodbye(self) -> None:
        self.finish_now()

    def drop(self, reason: str, what: str) -> None:
        self.owner.drop(reason, what)

    def abort(self) -> None:
        self.owner.abort()

    def fail(self) -> None:
        self.owner.fail()

    def login_failed(self) -> int:
        return self.owner.login_failed()

    def logged_in(self) -> None:
        self.owner.logged_in()

    # --- the sides --------------------------------------------------------------------------------

    def finish_now(self) -> None:
        """Everything that was written is with the engine: the end follows it."""
        if not self.output_over:
            self.output_over = True
            self.owner.write_end(self.number)
            self.look()

    def reset(self, code: int) -> None:
        if not self.output_over:
            self.output_over = True
            self.owner.reset(self.number, code)
            self.look()

    def stop(self, code: int) -> None:
        if not self.input_over and not self.stopped:
            self.stopped = True
            self.owner.stop(self.number, code)
            self.look()

    def look(self) -> None:
        if (self.input_over or self.stopped) and self.output_over and not self.is_lost:
            self.owner.both_sides_over(self.number)


class QuicNetStream(NetStream):
    """The QuicStream that a session sees."""

    __slots__ = ("_quic_session", "_sides")

    def __init__(self, carrier: StreamCarrier, hub: Hub) -> None:
        super().__init__(carrier, hub)
        self._sides = carrier
        self._quic_session: StreamSession | None = None

    def begin_quic(self, session: StreamSession) -> None:
        self.begin(session)
        self._quic_session = session

    def ignore(self) -> None:
        """Nobody is interested: what comes is dropped, and there is nothing to say."""
        self._sides.finish_now()

    @property
    def number(self) -> int:
        return self._sides.number

    @property
    def unidirectional(self) -> bool:
        return bool(self._sides.number & ONE_DIRECTION)

    def write(self, data: bytes) -> None:
        if not self._sides.output_over and not self._sides.finishing:
            super().write(data)

    def finish(self) -> None:
        self._sides.finishing = True
        self.flush_later()

    def close(self) -> None:
        super().close()
        self.flush_later()

    def reset(self, code: int) -> None:
        self.forget_output()
        self._sides.reset(code)

    def stop_sending(self, code: int) -> None:
        self._sides.stop(code)

    def flush(self) -> None:
        super().flush()
        sides = self._sides
        if sides.finishing and not self._out and not sides.is_lost:
            sides.finish_now()

    # --- what the connection calls ----------------------------------------------------------------

    def peer_reset(self, code: int) -> None:
        sides = self._sides
        if sides.input_over:
            return
        sides.input_over = True
        self.ended = True
        session = self._quic_session
        if session is not None and not sides.stopped:
            try:
                session.peer_reset(code)
            except Exception:  # a bug: this connection ends, the others continue
                sides.fail()
        sides.look()

    def peer_stopped(self, code: int) -> None:
        sides = self._sides
        self.forget_output()
        if sides.output_over:
            return
        sides.output_over = True  # the engine has reset it
        session = self._quic_session
        if session is not None:
            try:
                session.peer_stopped(code)
            except Exception:  # as above
                sides.fail()
        sides.look()

    def take(self, data: bytes, fin: bool) -> None:
        """What the engine has for this stream, within one turn."""
        sides = self._sides
        if sides.input_over:
            return
        if fin:
            sides.input_over = True
        if sides.stopped or self._quic_session is None:
            if fin:
                sides.look()
            return
        self.read_begins()
        try:
            if data:
                self.receive(data)
            if fin and not sides.is_lost:
                self.end_of_input()
        finally:
            self.read_ends()
        if fin:
            sides.look()

    def forget_output(self) -> None:
        self._out = []
        self._out_bytes = 0
        self._blocked = False

    def gone(self) -> None:
        """Both sides are over, or the connection is."""
        sides = self._sides
        if not sides.is_lost:
            sides.is_lost = True
            sides.closing = True
            self._quic_session = None
            self.lost()
