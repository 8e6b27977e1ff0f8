"""QUIC connections of clients: trust, failures to connect, streams, backpressure, and their end."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from client.peer import Waits, run
from client.quic.server import Foreign, ForeignServer, foreign_server
from kit.authority import Authority
from kit.echo_server import make_certificate

from penstock.client.errors import ClientError, ConnectFailed, ConnectionLost
from penstock.client.quic.connection import QuicConnection
from penstock.client.quic.inbox import HELD_BYTES, Inbox
from penstock.client.quic.line import QuicLine
from penstock.client.quic.stream import QUEUE_BYTES, QuicStream
from penstock.client.quic.trust import QuicTrust, UnusableTrustFile
from penstock.client.settings import ClientSettings

ANYBODY = QuicTrust(insecure=True)
SHORT_S = 0.05


class Listener:
    """A protocol that only remembers."""

    def __init__(self) -> None:
        self.losses: list[ClientError] = []
        self.lost_once = asyncio.Event()
        self.streams: list[QuicStream] = []
        self.received: dict[int, bytes] = {}
        self.greetings = 0

    async def greet(self, line: QuicLine) -> None:
        self.greetings += 1

    def accepted(self, line: QuicLine, stream: QuicStream) -> None:
        self.streams.append(stream)
        stream.receive = lambda data: self.take(stream, data)

    def take(self, stream: QuicStream, data: bytes) -> int:
        self.received[stream.id] = self.received.get(stream.id, b"") + data
        return len(data)

    def lost(self, line: QuicLine, error: ClientError) -> None:
        self.losses.append(error)
        self.lost_once.set()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def echo(connection: Foreign, stream: int, data: bytes, fin: bool) -> int:
    connection.send(stream, data, fin)
    return len(data)


def dialled(
    server: ForeignServer | str,
    trust: QuicTrust = ANYBODY,
    settings: ClientSettings | None = None,
    application: str | None = None,
) -> tuple[QuicConnection, Listener]:
    listener = Listener()
    address = server if isinstance(server, str) else server.address
    chosen = settings or ClientSettings(attempts=0)
    return QuicConnection(address, chosen, trust, application, listener), listener


async def echoed(line: QuicLine, listener: Listener, data: bytes) -> bytes:
    stream = await line.open()
    ended = asyncio.Event()
    stream.receive = lambda some: listener.take(stream, some)
    stream.ended = lambda reason: ended.set()
    for first in range(0, len(data), 100_000):
        stream.write(data[first : first + 100_000])
        await stream.drain(60)
    stream.write(b"", fin=True)
    await ended.wait()
    return listener.received[stream.id]


@pytest.mark.parametrize("size", [1, 3 * 1024 * 1024])
def test_what_a_stream_carries_both_ways(authority: Authority, size: int) -> None:
    async def work() -> None:
        async with foreign_server(authority.server(), echo) as server:
            connection, listener = dialled(server, QuicTrust(ca=authority.ca))
            await connection.open()
            assert connection.live is not None
            data = bytes(range(256)) * (size // 256 + 1)
            assert await echoed(connection.live, listener, data) == data
            await connection.close()
            assert listener.losses == []

    run(work())


def test_whom_a_client_trusts(authority: Authority, tmp_path: Path) -> None:
    """An authority for the right name, and the server's own certificate; nobody else."""
    (tmp_path / "own").mkdir()
    own = make_certificate(tmp_path / "own")
    both = tmp_path / "own.pem"
    both.write_bytes(Path(own.certificate).read_bytes() + Path(own.key).read_bytes())
    other = Authority(tmp_path / "other")

    async def attempt(server: ForeignServer, trust: QuicTrust) -> str:
        connection, _ = dialled(server, trust)
        try:
            await connection.open()
        except ConnectFailed as error:
            return str(error)
        await connection.close()
        return ""

    async def work() -> None:
        async with foreign_server(authority.server(), echo) as server:
            assert await attempt(server, QuicTrust(ca=authority.ca)) == ""
            assert await attempt(server, ANYBODY) == ""
            named = QuicTrust(ca=authority.ca, server_name="localhost")
            assert await attempt(server, named) == ""
            wrong = QuicTrust(ca=authority.ca, server_name="example.org")
            for distrusting in (wrong, QuicTrust(ca=other.ca), QuicTrust()):
                said = await attempt(server, distrusting)
                assert "its certificate was not accepted" in said and "--insecure" in said
            for connection in server.connections[3:]:
                while connection.closed is None:
                    await connection.changed.wait()
                    connection.changed.clear()
                assert connection.closed.error_code == 0x100 + 42
        async with foreign_server(str(both), echo) as server:
            assert await attempt(server, QuicTrust(ca=own.certificate)) == ""
            assert "not accepted" in await attempt(server, QuicTrust(ca=authority.ca))

    run(work())


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"hello", "no certificate in PEM form"), (b"bad", "is damaged")],
)
def test_a_file_of_certificates_that_is_none(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        damaged = b"-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n"
        path.write_bytes(damaged if content == b"bad" else content)

    async def work() -> None:
        connection, _ = dialled("127.0.0.1:1", QuicTrust(ca=str(path)))
        with pytest.raises(UnusableTrustFile, match=reason):
            await connection.open()

    run(work())


def test_nobody_listens() -> None:
    """The kernel tells at once, without a time limit."""
    free = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()

    async def work() -> None:
        connection, _ = dialled(f"127.0.0.1:{port}")
        with pytest.raises(ConnectFailed, match="Connection refused; nothing listens there"):
            await connection.open()

    run(work())


def test_nobody_answers() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        async def work() -> None:
            connection, _ = dialled(address, settings=ClientSettings(SHORT_S, attempts=0))
            with pytest.raises(ConnectFailed, match=r"no answer over QUIC \(UDP\) within 0.05 s"):
                await connection.open()

        run(work())


def test_a_host_that_does_not_exist() -> None:
    async def work() -> None:
        connection, _ = dialled("no-such-host.invalid:1")
        with pytest.raises(ConnectFailed, match="cannot connect to no-such-host"):
            await connection.open()

    run(work())


def test_a_server_without_the_application(authority: Authority) -> None:
    async def work() -> None:
        async with foreign_server(authority.server(), echo, ["other"]) as server:
            connection, _ = dialled(server, application="fujin")
            with pytest.raises(ConnectFailed):
                await connection.open()

    run(work())


def test_streams_that_the_server_opens_and_the_end_that_it_makes(authority: Authority) -> None:
    async def work() -> None:
        async with foreign_server(authority.server(), echo) as server:
            connection, listener = dialled(server)
            await connection.open()
            (peer,) = server.connections
            for unidirectional in (True, False):
                peer.open(b"hello", unidirectional=unidirectional, fin=True)
            while len(listener.received) < 2:
                await asyncio.sleep(0)
            assert set(listener.received.values()) == {b"hello"}
            peer._quic.close(error_code=9, reason_phrase="enough")
            peer.transmit()
            await listener.lost_once.wait()
            (loss,) = listener.losses
            assert isinstance(loss, ConnectionLost) and "enough (code 9)" in str(loss)
            with pytest.raises(ConnectionLost):
                await connection.channel()

    run(work())


def test_it_connects_again_with_a_growing_wait(authority: Authority) -> None:
    waits = Waits()

    async def work() -> None:
        async with foreign_server(authority.server(), echo) as server:
            connection, listener = dialled(server, settings=waits.settings())
            await connection.open()
            first = connection.live
            assert first is not None
            first.abort("of a test")
            second = await connection.channel(patient=True)
            assert second is not first and connection.reconnects == 1
            assert await echoed(second, listener, b"again") == b"again"
            await connection.close()
        assert listener.greetings == 2 and waits.delays_s == [0.1]

    run(work())


def test_a_server_that_reads_nothing_holds_the_writer(authority: Authority) -> None:
    """`drain` waits, what is queued stays within its bound, and a wait without progress is a time-out."""

    async def work() -> None:
        window = 64 * 1024
        limits: dict[str, Any] = {"max_stream_data": window, "max_data": 4 * window}
        async with foreign_server(authority.server(), lambda *_: 0, **limits) as server:
            connection, _ = dialled(server)
            await connection.open()
            (peer,) = server.connections
            # It grants nothing beyond the first window.
            peer._quic._write_stream_limits = lambda *a, **k: None  # type: ignore[method-assign]
            line = connection.live
            assert line is not None
            stream = await line.open()
            stream.write(bytes(QUEUE_BYTES + 2 * window))
            waiting = asyncio.ensure_future(stream.drain(60))
            other = await line.open()
            assert not other.choked
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(TimeoutError):
                await stream.drain(SHORT_S)
            line.abort("enough")
            await stream.drain(SHORT_S)

    run(work())


def test_a_paused_stream_takes_no_more_than_its_windows(authority: Authority) -> None:
    """And no other connection is held up; when it goes on, nothing is missing."""

    async def work() -> None:
        size = 12 * 1024 * 1024
        async with foreign_server(authority.server(), echo) as server:
            connection, listener = dialled(server)
            await connection.open()
            assert connection.live is not None
            stream = await connection.live.open()
            stream.receive = lambda some: listener.take(stream, some)
            ended = asyncio.Event()
            stream.ended = lambda reason: ended.set()
            stream.pause()
            (peer,) = server.connections
            stream.write(b"x")
            while not peer.held:
                await asyncio.sleep(0)
            peer.send(stream.id, bytes(size), fin=True)
            other, heard = dialled(server)
            await other.open()
            assert other.live is not None
            assert await echoed(other.live, heard, b"quick" * 1000) == b"quick" * 1000
            assert listener.received == {}
            assert connection.live._link.held_bytes <= 5 * 1024 * 1024
            stream.resume()
            await ended.wait()
            assert listener.received[stream.id] == b"x" + bytes(size)
            await other.close()
            await connection.close()

    run(work())


# ---- what waits for its consumer ----


class Faucet:
    """A stream as the inbox sees it."""

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


def test_a_full_inbox_pauses_its_stream() -> None:
    async def work() -> None:
        inbox: Inbox[int] = Inbox()
        faucet: Any = Faucet()
        inbox.attach(faucet)
        inbox.put(1, HELD_BYTES // 2)
        assert not faucet.paused
        inbox.put(2, HELD_BYTES // 2)
        assert faucet.paused
        with inbox.expecting_answer():
            assert not faucet.paused
            inbox.put(3, 10)
            assert not faucet.paused
        assert faucet.paused
        assert await inbox.get() == 1
        assert faucet.paused
        assert await inbox.get() == 2
        assert not faucet.paused
        waiting = asyncio.ensure_future(inbox.get())
        assert await waiting == 3
        cancelled = asyncio.ensure_future(inbox.get())
        await asyncio.sleep(0)
        cancelled.cancel()
        inbox.put(4, 1)
        inbox.end(ConnectFailed("server", "gone"))
        assert await inbox.get() == 4
        with pytest.raises(ConnectFailed):
            await inbox.get()

    run(work())
