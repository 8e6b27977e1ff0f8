"""A Fujin session: one stream that the client opened. It has a role, which its first command gives it.

    role      commands                                  anything else
    none      CONNECT WRITER, CONNECT READER            finished without a word; DISCONNECT is answered
    writer    WRITE, BEGIN, COMMIT, ROLLBACK            \
    reader    FETCH, ACK, NACK                          / all results, DISCONNECT, finished
    over      none: input is dropped

DISCONNECT, the end of the client's side and a command of another role end in the same way: open answers go
out first, an open transaction is rolled back, then [10] and the end of the stream. writer.py and reader.py
carry out the commands of the roles.
"""

from typing import Final, TypeAlias

from penstock.broker.access.access import Principal
from penstock.broker.delivery.lane import SECOND_US
from penstock.broker.errors import Code, from_exception
from penstock.broker.port import Port
from penstock.errors import PenstockError
from penstock.log.engine import Pending
from penstock.sessions.base import OVER, BaseSession
from penstock.sessions.fujin.conversation import OPERATIONS, text_of
from penstock.sessions.fujin.options import FujinOptions
from penstock.sessions.fujin.outside_reader import OutsideReader
from penstock.sessions.fujin.reader import Reader
from penstock.sessions.fujin.writer import Writer
from penstock.sessions.stream import FrameSize, SessionLimits, Stream
from penstock.wire.errors import PeerError
from penstock.wire.fujin import commands as wire
from penstock.wire.fujin.commands import ConnectReader, ConnectWriter, Ends, split_connect
from penstock.wire.fujin.reading import Fetch, Settle, split_reader
from penstock.wire.fujin.sizes import size_auto, size_off, size_on
from penstock.wire.fujin.writing import (
    AUTO,
    OFF,
    ON,
    Refused,
    Transaction,
    WriteRun,
    split_writer,
)

Item: TypeAlias = (
    ConnectWriter | ConnectReader | WriteRun | Refused | Transaction | Fetch | Settle | Ends
)

SIZES: Final[dict[int, FrameSize]] = {AUTO: size_auto, ON: size_on, OFF: size_off}
# Refusals for which a reader does not exist.
NOT_FOUND: Final = frozenset({Code.UNKNOWN_TOPIC, Code.INVALID_TOPIC_NAME})


class FujinSession(BaseSession[Item]):
    protocol = "fujin"

    def __init__(
        self,
        port: Port,
        stream: Stream,
        limits: SessionLimits,
        principal: Principal,
        options: FujinOptions,
    ) -> None:
        """`principal`: the one that the peer acts as, since Fujin has no login."""
        super().__init__(stream, limits, port.counters["fujin"], SIZES[options.write_headers])
        self.port = port
        self.principal = principal
        self.options = options
        self._writer: Writer | None = None
        self._reader: Reader | OutsideReader | None = None
        # The broker of the reader is outside, and has not answered yet.
        self._opening = False
        # Bytes of a message that was refused for its size and is still coming.
        self._skip = 0
        self._may_write = False
        self._input_is_over = False
        self._disconnecting = False
        self._stopping = False

    # --- frames -----------------------------------------------------------------------------------

    def split(self, buffer: bytes, start: int) -> tuple[list[Item], int, PeerError | None]:
        items: list[Item] = []
        end = len(buffer)
        skipped = min(self._skip, end - start)
        self._skip -= skipped
        start += skipped
        if self._writer is not None:
            found, position = split_writer(
                buffer, start, end, self.options.write_headers, self._largest_message()
            )
            items.extend(found)
            last = found[-1] if found else None
            if isinstance(last, Refused):
                self._skip += last.skip
        elif self._reader is not None:
            commands, position = split_reader(buffer, start, end)
            items.extend(commands)
        else:
            beginning, position = split_connect(buffer, start, end)
            items.extend(beginning)
            # All of CONNECT WRITER but the byte that tells how its id is to be read.
            self._may_write = buffer[start : start + 1] == b"\x01" and end - start >= 5
        return items, position, None

    def _largest_message(self) -> int:
        """A principal without any right gets no more memory than a peer that has not logged in."""
        if self.port.has_rights(self.principal):
            return self.options.max_message_bytes
        return min(self.options.max_message_bytes, self.limits.prelogin_frame_bytes)

    def perform(self, item: Item) -> bool:
        if isinstance(item, Ends):
            return self._end_with(item)
        if self._writer is not None:
            return self._write(self._writer, item)
        if self._reader is not None:
            return not self._opening and self._read(self._reader, item)
        self.counters.frames_in += 1
        if isinstance(item, ConnectWriter):
            self._writer = Writer(self, "" if item.id is None else str(item.id))
        elif isinstance(item, ConnectReader):
            self._connect_reader(item)
        return True

    def _write(self, writer: Writer, item: Item) -> bool:
        if isinstance(item, WriteRun):
            return writer.write(item)
        if isinstance(item, Refused):
            writer.refused(item)
        elif isinstance(item, Transaction):
            return writer.transaction(item)
        return True

    def _read(self, reader: Reader | OutsideReader, item: Item) -> bool:
        if isinstance(item, Fetch):
            reader.fetch(item)
        elif isinstance(item, Settle):
            if not reader.may_settle:
                return False
            reader.settle(item)
        return True

    # --- readers ----------------------------------------------------------------------------------

    def _connect_reader(self, wanted: ConnectReader) -> None:
        if wanted.topic in self.options.outside:
            self._connect_outside(wanted)
            return
        route = self.options.route(wanted.topic)
        if route is None:
            self._refuse_reader(wire.READER_NOT_FOUND)
            return
        try:
            self.port.require(self.principal, OPERATIONS[wire.CONNECT_READER], route.topic)
            if self.port.topic(route.topic) is None and self.options.auto_create:
                self.port.create_topic(self.principal, route.topic, 1)
            reader = Reader(self, route, push=wanted.push, auto_commit=wanted.auto_commit)
        except PenstockError as error:
            refusal = from_exception(error)
            unknown = refusal.code in NOT_FOUND
            self._refuse_reader(wire.READER_NOT_FOUND if unknown else text_of(refusal))
            return
        self._reader = reader
        self.counters.frames_out += 1
        # Alone in its packet: a client reads once, and takes nothing but this from it.
        self.answer(wire.CONNECTED)
        reader.start()

    def _connect_outside(self, wanted: ConnectReader) -> None:
        """The reply waits for the broker of the route."""
        route = self.options.outside[wanted.topic]
        try:
            self.port.require(self.principal, OPERATIONS[wire.CONNECT_READER], route.name)
            reader = OutsideReader(self, route, push=wanted.push, auto_commit=wanted.auto_commit)
        except PenstockError as error:
            self._refuse_reader(text_of(error))
            return
        self._reader = reader
        self._opening = True
        slot = self.hold(0)

        def opened(done: Pending[None]) -> None:
            self._opening = False
            if self.is_over:
                return
            if done.error is not None:
                self.counters.errors["refused reader"] += 1
                slot.reply = wire.encode_connect_refused(text_of(done.error))
                self.close()
                return
            self.counters.frames_out += 1
            reader.start()
            self.settle(slot, wire.CONNECTED)

        reader.opened.on_done(self.guarded(opened))

    def _refuse_reader(self, text: str) -> None:
        self.counters.errors["refused reader"] += 1
        self.answer(wire.encode_connect_refused(text))
        self.close()

    # --- the end ----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.state == OVER

    @property
    def is_ending(self) -> bool:
        """The client has said its last word; only what was begun is brought to its end."""
        return self._disconnecting or self._input_is_over

    def _end_with(self, ends: Ends) -> bool:
        """False while answers are open."""
        self._disconnecting = True
        if self.answers_are_open() or (self._reader is not None and self._reader.has_open_work):
            return False
        if ends.flaw:
            self.counters.errors["framing"] += 1
        self.counters.frames_in += 1
        self._finish(ends.words)
        return True

    def _finish(self, words: bytes) -> None:
        if self.is_over:
            return
        if self._writer is not None:
            self._writer.leave()
        if self._reader is not None:
            last = self._reader.leave()
            if last:
                self.answer(last)
        if words:
            self.counters.frames_out += 1
            self.answer(words)
        self.close()

    def write_now(self, data: bytes) -> None:
        self.send()
        self.stream.write(data)

    def close(self) -> None:
        """With the session its roles end: a reader takes nothing that nobody would get any more."""
        if self._writer is not None:
            self._writer.leave()
        if self._reader is not None:
            self._reader.leave()
        super().close()

    def end(self) -> None:
        """From our side. Answers that are open go out first where the session waits for them."""
        self._finish(wire.DISCONNECTED)

    def end_of_input(self) -> None:
        """As a DISCONNECT, once what was sent is carried out; without a role there is nobody to answer."""
        self._input_is_over = True
        super().end_of_input()

    def _close_when_done(self) -> None:
        if self._input_is_over and not self.is_over and not self._has_more():
            began = self._writer is not None or self._reader is not None or self._may_write
            self._finish(wire.DISCONNECTED if began else b"")
        else:
            super()._close_when_done()

    def _has_more(self) -> bool:
        return self.busy() or self._next < len(self._requests)

    def has_open_work(self) -> bool:
        if self._reader is not None and self._reader.has_open_work:
            return True
        # While the server stops, a client has time to disconnect.
        active = self._writer is not None or self._reader is not None
        return self._stopping and active and not self._input_is_over and not self.is_over

    def left(self) -> None:
        if self._reader is not None:
            self._reader.leave()
        self.port.leave(self)

    # --- the server's side ------------------------------------------------------------------------

    def writable(self) -> None:
        super().writable()
        if self._reader is not None and not self.is_over:
            self._reader.pump()

    def peer_stopped(self, code: int) -> None:
        """Nobody reads the answers any more."""
        if not self.is_over:
            self.close()

    def peer_reset(self, code: int) -> None:
        if not self.is_over:
            self.close()

    def drain(self) -> None:
        """The server stops: the client is told, and has a while to disconnect."""
        if self.is_over or self._stopping:
            return
        self._stopping = True
        if self._writer is not None or self._reader is not None:
            self.stream.write(wire.STOP)
            self.port.later(self.options.stop_grace_us / SECOND_US, self.end)
        super().drain()
