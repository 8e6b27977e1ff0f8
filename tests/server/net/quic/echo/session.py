"""Every stream gives back its bytes. A stream that begins with a command does something else:

push N\\n    opens a stream of one direction with N bytes of 'p'
ping\\n      opens a stream of two directions with one byte, and finishes it
close\\n     closes the connection with code 7
fail\\n      raises, as a bug would
reset\\n     resets this stream with code 11
stop\\n      asks the peer to stop, with code 12
finish\\n    ends our side and goes on reading
hold\\n      pauses the stream until `go` comes on another one

A command may come in pieces: what could be its beginning waits for the rest.
"""

from penstock.broker.port import Port
from penstock.server.protocols import Terms
from penstock.sessions.streams import QuicConnection, QuicStream, StreamSession

COMMANDS = (b"push ", b"ping", b"close", b"fail", b"reset", b"stop", b"finish", b"hold", b"go")


def may_be_command(data: bytes) -> bool:
    """Whether it is the beginning of one, without its end."""
    if b"\n" in data:
        return False
    return any(one.startswith(data) or data.startswith(one) for one in COMMANDS)


class EchoStream:
    protocol = "echo"

    def __init__(self, stream: QuicStream, connection: "EchoConnection") -> None:
        self.stream = stream
        self.connection = connection
        self.received = bytearray()
        self.told: list[str] = []
        self._pending: list[bytes] = []
        self._begun = b""
        self._ends = False

    def receive(self, data: bytes) -> None:
        self.received += data
        data = self._begun + data
        self._begun = data if may_be_command(data) else b""
        if not self._begun:
            self._perform(data)

    def _perform(self, data: bytes) -> None:
        command, _, argument = data.partition(b"\n")[0].partition(b" ")
        action = getattr(self, f"_do_{command.decode('latin-1')}", None)
        if action is not None and data.endswith(b"\n"):
            action(argument)
        else:
            self._pending.append(data)
            self.writable()

    def writable(self) -> None:
        while self._pending and not self.stream.congested:
            self.stream.write(self._pending.pop(0))
        if self._pending:
            self.stream.pause("answer")
            return
        self.stream.resume("answer")
        if self._ends:
            self.stream.close()

    def _do_push(self, count: bytes) -> None:
        self.connection.push(int(count))

    def _do_ping(self, _: bytes) -> None:
        self.connection.ping()

    def _do_close(self, _: bytes) -> None:
        self.connection.connection.close(7, "as told")

    def _do_fail(self, _: bytes) -> None:
        raise RuntimeError("as told")

    def _do_reset(self, _: bytes) -> None:
        self.stream.reset(11)

    def _do_stop(self, _: bytes) -> None:
        self.stream.stop_sending(12)

    def _do_finish(self, _: bytes) -> None:
        self.stream.write(b"last")
        self.stream.finish()

    def _do_hold(self, _: bytes) -> None:
        self.stream.pause("held")
        self.connection.held.append(self.stream)

    def _do_go(self, _: bytes) -> None:
        while self.connection.held:
            self.connection.held.pop().resume("held")

    def end_of_input(self) -> None:
        self.told.append("end")
        self._ends = True
        if self._begun:
            self._pending.append(self._begun)
        self.writable()

    def peer_reset(self, code: int) -> None:
        self.told.append(f"reset {code}")
        self.stream.close()

    def peer_stopped(self, code: int) -> None:
        self.told.append(f"stopped {code}")

    def closed(self) -> None:
        self.told.append("closed")
        self.connection.streams.remove(self)
        self.connection.ended.append(self)

    def drain(self) -> None:
        self.told.append("drain")
        self.stream.write(b"bye")

    def busy(self) -> bool:
        return bool(self._pending)

    def held_bytes(self) -> int:
        return sum(map(len, self._pending))


class PushStream(EchoStream):
    """Of ours: `left` bytes are still to be written."""

    left = 0

    def writable(self) -> None:
        while self.left and not self.stream.congested:
            size = min(self.left, 64 * 1024)
            self.stream.write(b"p" * size)
            self.left -= size
        if not self.left:
            self.stream.finish()

    def receive(self, data: bytes) -> None:
        self.received += data

    def busy(self) -> bool:
        return self.left > 0


class EchoConnection:
    protocol = "echo"

    # For tests that look inside.
    latest: "EchoConnection"

    def __init__(self, port: Port | None, connection: QuicConnection, terms: Terms | None) -> None:
        self.connection = connection
        self.streams: list[EchoStream] = []
        self.ended: list[EchoStream] = []
        self.held: list[QuicStream] = []
        self.waiting: list[int] = []
        self.told: list[str] = []
        connection.logged_in()
        EchoConnection.latest = self

    def accept(self, stream: QuicStream) -> StreamSession | None:
        self.streams.append(EchoStream(stream, self))
        return self.streams[-1]

    def push(self, count: int) -> None:
        def make(stream: QuicStream) -> PushStream:
            return PushStream(stream, self)

        made = self.connection.open_stream(make, unidirectional=True)
        if made is None:
            self.waiting.append(count)
            return
        self.streams.append(made)
        made.left = count
        made.writable()

    def ping(self) -> None:
        def make(stream: QuicStream) -> EchoStream:
            return EchoStream(stream, self)

        made = self.connection.open_stream(make, unidirectional=False)
        assert made is not None
        self.streams.append(made)
        made.stream.write(b"\x0b")
        made.stream.finish()

    def streams_allowed(self) -> None:
        waiting, self.waiting = self.waiting, []
        for count in waiting:
            self.push(count)

    def closed(self) -> None:
        self.told.append("closed")

    def drain(self) -> None:
        self.told.append("drain")

    def busy(self) -> bool:
        return bool(self.waiting)
