"""A conversation in the toy protocol: bytes in, calls of the port, bytes out. No sockets."""

from server.toy import wire

from penstock.broker.errors import from_exception
from penstock.broker.port import Port
from penstock.broker.records import Records
from penstock.errors import PenstockError
from penstock.server.protocols import Terms
from penstock.sessions.base import BaseSession, Slot
from penstock.sessions.stream import Stream
from penstock.wire.errors import PeerError


class ToySession(BaseSession[wire.Frame]):
    protocol = "toy"

    def __init__(self, port: Port, stream: Stream, terms: Terms) -> None:
        super().__init__(stream, terms.limits, port.counters["toy"], terms.frame_size)
        self._port = port
        self._principal = terms.principal
        stream.logged_in()  # nobody logs in to a toy

    def split(self, buffer: bytes, start: int) -> tuple[list[wire.Frame], int, PeerError | None]:
        return wire.split(buffer, start)

    def last_words(self, error: PeerError) -> bytes:
        return wire.encode(wire.REFUSED, "", error.what.encode())

    def perform(self, request: wire.Frame) -> bool:
        """A PUT never waits for those before it; a GET does, so that it sees their effect."""
        if request.kind != wire.PUT and self.answers_are_open():
            return False
        self.counters.frames_in += 1
        slot = self.hold(len(request.payload))
        try:
            if request.kind == wire.PUT:
                self._put(request, slot)
            else:
                self._get(request, slot)
        except PenstockError as error:
            slot.reply = self._refusal(request, error)
        return True

    def _put(self, request: wire.Frame, slot: Slot) -> None:
        self.counters.messages_in += 1
        token = self._port.publish(self._principal, request.topic, None, Records([request.payload]))

        def written(_: object) -> None:
            reply = self._refusal(request, token.error) if token.error is not None else None
            offset = wire.pack_offset(max(token.base_offset, 0))
            self.settle(slot, reply or wire.encode(wire.DONE, request.topic, offset))

        token.on_done(written)

    def _get(self, request: wire.Frame, slot: Slot) -> None:
        offset = wire.unpack_offset(request.payload)
        read = self._port.read(self._principal, request.topic, 0, offset, 1)

        def found(_: object) -> None:
            if read.error is not None:
                self.settle(slot, self._refusal(request, read.error))
                return
            values = [value for view in read.result().views for value in view.values()]
            if not values:
                self.settle(slot, wire.encode(wire.REFUSED, request.topic, b"nothing there"))
                return
            self.counters.messages_out += 1
            self.settle(slot, wire.encode(wire.RECORD, request.topic, values[0]))

        read.on_done(found)

    def _refusal(self, request: wire.Frame, error: BaseException) -> bytes:
        text = error.what if isinstance(error, PeerError) else str(from_exception(error))
        self.counters.errors[text] += 1
        return wire.encode(wire.REFUSED, request.topic, text.encode())
