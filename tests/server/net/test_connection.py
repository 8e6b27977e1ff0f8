"""Connections over real sockets, on both loops: reading, writing, limits, pausing, half-close."""

import asyncio
import logging
import socket

import pytest
from kit.echo_server import LOOPS, Echo, echo_server, hang_up, next_turn, run

from penstock.server.net.connection import Connection
from penstock.server.net.hub import ConnectionLimits
from penstock.server.net.peer_log import PEER_LOG_ADDRESSES, PeerLog
from penstock.server.net.stream import CONGESTED_BYTES, NO_MEMORY, PEER_READS_NOTHING

HELLO = bytes.fromhex("0000000b 01 0000000000000001 0001")
PING = b"\0\0\0\1\xff"
MIB = 1024 * 1024

pytestmark = pytest.mark.parametrize("loop", LOOPS)


def test_echo_and_its_books(loop: str) -> None:
    async def test() -> None:
        async with echo_server() as echo:
            reader, writer = await echo.connect()
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            traffic = echo.hub.counters.of("blipmq")
            assert (traffic.opened, traffic.open) == (1, 1)
            assert (traffic.bytes_in, traffic.bytes_out) == (5, 5)
            own = writer.get_extra_info("sockname")
            assert echo.sessions[0].outlet.peer == f"127.0.0.1:{own[1]}"
            await hang_up(writer)
            await echo.until(lambda: not echo.hub.connections)
            assert echo.sessions[0].gone
            assert traffic.open == 0

    run(loop, test)


def test_small_frames_are_not_delayed(loop: str) -> None:
    async def test() -> None:
        async with echo_server() as echo:
            _, writer = await echo.connect()
            await echo.until(lambda: echo.hub.connections)
            (connection,) = echo.hub.connections
            assert isinstance(connection, Connection)
            found = connection._transport.get_extra_info("socket")
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await hang_up(writer)

    run(loop, test)


@pytest.mark.parametrize(("first", "protocol"), [(HELLO, "blipmq"), (PING, "rustlog")])
@pytest.mark.parametrize("dribble", [False, True])
def test_the_first_bytes_choose_the_session(
    loop: str, first: bytes, protocol: str, dribble: bool
) -> None:
    async def test() -> None:
        async with echo_server(protocol=None) as echo:
            reader, writer = await echo.connect()
            for part in [bytes([byte]) for byte in first] if dribble else [first]:
                writer.write(part)
                await next_turn()
            assert await reader.readexactly(len(first)) == first
            assert [session.protocol for session in echo.sessions] == [protocol]
            assert echo.sessions[0].received == first
            counters = echo.hub.counters
            assert counters.of(protocol).open == 1
            assert counters.of("undecided").open == 0
            await hang_up(writer)

    run(loop, test)


def test_unknown_bytes_are_closed_counted_and_logged_once(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with echo_server(protocol=None) as echo:
            for _ in range(3):
                reader, writer = await echo.connect()
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await reader.read() == b""
                await hang_up(writer)
            assert echo.hub.counters.closed == {"unknown_protocol": 3}
            assert echo.sessions == []

    with caplog.at_level(logging.WARNING):
        run(loop, test)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "47 45 54 20 2f 20 48 54 fit no protocol" in lines[0]


def test_a_defect_of_one_session_ends_one_connection(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with echo_server() as echo:
            reader, writer = await echo.connect()
            other_reader, other_writer = await echo.connect()
            writer.write(b"BOOM")
            with pytest.raises(ConnectionResetError):
                while await reader.read(1):
                    await next_turn()
                raise ConnectionResetError
            other_writer.write(b"still here")
            assert await other_reader.readexactly(10) == b"still here"
            assert echo.hub.counters.closed == {"internal_error": 1}
            for one in (writer, other_writer):
                await hang_up(one)

    run(loop, test)
    assert "a defect" in caplog.text


def test_writes_of_one_turn_go_out_together(loop: str) -> None:
    sends: list[int] = []

    class Counting(Connection):
        def send(self, parts: list[bytes]) -> None:
            sends.append(len(parts))
            super().send(parts)

    async def test() -> None:
        async with echo_server(connection=Counting) as echo:
            reader, writer = await echo.connect()
            writer.write(b"PARTS")
            expected = b"".join(b"%02d" % number for number in range(100))
            assert await reader.readexactly(200) == expected
            assert sends == [100]
            await hang_up(writer)

    run(loop, test)


# --- ends ----------------------------------------------------------------------------------------


def test_half_close_is_answered_then_closed(loop: str) -> None:
    async def test() -> None:
        async with echo_server() as echo:
            reader, writer = await echo.connect()
            writer.write(b"last words")
            writer.write_eof()
            assert await reader.read() == b"last wordsBYE"
            await echo.until(lambda: not echo.hub.connections)
            assert echo.sessions[0].ended
            await hang_up(writer)

    run(loop, test)


def test_half_close_before_any_protocol_is_no_fault(loop: str) -> None:
    async def test() -> None:
        async with echo_server(protocol=None) as echo:
            reader, writer = await echo.connect()
            writer.write(b"\0\0")
            writer.write_eof()
            assert await reader.read() == b""
            await echo.until(lambda: not echo.hub.connections)
            assert not echo.hub.counters.closed
            await hang_up(writer)

    run(loop, test)


def test_close_waits_until_all_is_out(loop: str) -> None:
    async def test() -> None:
        async with echo_server() as echo:
            reader, writer = await echo.connect()
            writer.write(b"BYE %d" % (8 * MIB))
            assert len(await reader.read()) == 8 * MIB
            await hang_up(writer)
            await echo.until(lambda: not echo.hub.connections)
            assert echo.hub.held_bytes == 0

    run(loop, test)


def test_the_last_answer_reaches_a_peer_that_is_still_sending(loop: str) -> None:
    async def test() -> None:
        async with echo_server() as echo:
            reader, writer = await echo.connect()
            writer.write(b"BYE 5")
            await echo.until(lambda: echo.sessions and echo.sessions[0].received)
            for _ in range(20):
                writer.write(bytes(64 * 1024))
                await next_turn()
            assert await reader.read() == bytes(5)
            assert echo.sessions[0].received == b"BYE 5"
            await hang_up(writer)

    run(loop, test)


def test_a_peer_that_never_reads_its_last_answer_is_cut_off(loop: str) -> None:
    async def test() -> None:
        limits = ConnectionLimits(close_time_s=0.05)
        async with echo_server(limits) as echo:
            client = await silent_client(echo)
            await asyncio.get_running_loop().sock_sendall(client, b"BYE %d" % (16 * MIB))
            await echo.until(lambda: echo.hub.counters.closed)
            assert echo.hub.counters.closed == {"unread_output": 1}
            await echo.until(lambda: not echo.hub.connections)
            client.close()

    run(loop, test)


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ConnectionLimits(connections=2), "connections"),
        (ConnectionLimits(connections_per_address=2), "connections_per_address"),
    ],
)
def test_connections_beyond_the_limit_are_refused(
    loop: str, limits: ConnectionLimits, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with echo_server(limits) as echo:
            kept = [await echo.connect() for _ in range(2)]
            await echo.until(lambda: len(echo.hub.connections) == 2)
            reader, writer = await echo.connect()
            assert await ended(reader)
            assert echo.hub.counters.refused == {reason: 1}
            await hang_up(writer)
            await hang_up(kept.pop()[1])
            await echo.until(lambda: len(echo.hub.connections) == 1)
            reader, writer = await echo.connect()
            writer.write(b"room again")
            assert await reader.readexactly(10) == b"room again"
            for one in (writer, kept[0][1]):
                await hang_up(one)

    run(loop, test)
    assert f"limits.{reason} reached" in caplog.text


@pytest.mark.parametrize("protocol", [None, "blipmq"])
@pytest.mark.parametrize("said", [b"", b"\0", HELLO])
def test_no_login_in_time(loop: str, protocol: str | None, said: bytes) -> None:
    async def test() -> None:
        async with echo_server(ConnectionLimits(login_time_s=0.05), protocol=protocol) as echo:
            reader, writer = await echo.connect()
            writer.write(said)
            await reader.read()
            assert echo.hub.counters.closed == {"login_time": 1}
            await hang_up(writer)

    run(loop, test)


def test_login_ends_its_timer_and_silence_begins_to_count(loop: str) -> None:
    async def test() -> None:
        limits = ConnectionLimits(login_time_s=0.05, idle_time_s=0.2)
        async with echo_server(limits) as echo:
            clock = asyncio.get_running_loop()
            reader, writer = await echo.connect()
            writer.write(b"LOGIN")
            assert await reader.readexactly(2) == b"OK"
            began = clock.time()
            assert await reader.read() == b""
            assert clock.time() - began >= 0.19
            assert echo.hub.counters.closed == {"idle_time": 1}
            await hang_up(writer)

    run(loop, test)


def test_traffic_keeps_a_connection_alive(loop: str) -> None:
    async def test() -> None:
        async with echo_server(ConnectionLimits(idle_time_s=0.3)) as echo:
            clock = asyncio.get_running_loop()
            reader, writer = await echo.connect()
            writer.write(b"LOGIN")
            await reader.readexactly(2)
            until = clock.time() + 0.7
            while clock.time() < until:
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                await next_turn()
            assert not echo.hub.counters.closed
            await hang_up(writer)

    run(loop, test)


def test_failed_logins_are_counted_per_connection(loop: str) -> None:
    async def test() -> None:
        async with echo_server() as echo:
            for _ in range(2):
                reader, writer = await echo.connect()
                for _ in range(3):
                    writer.write(b"FAIL")
                    assert await reader.readexactly(2) == b"NO"
                await hang_up(writer)
            assert [session.failed for session in echo.sessions] == [[1, 2, 3]] * 2
            assert echo.hub.counters.failed_logins == 6

    run(loop, test)


# --- peers that do not read ----------------------------------------------------------------------


async def silent_client(echo: Echo) -> socket.socket:
    """A client with a small window that reads only when told to."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", echo.port))
    return client


async def read_all(client: socket.socket, size: int) -> int:
    """Reads until `size` bytes are there."""
    loop = asyncio.get_running_loop()
    got = 0
    while got < size:
        part = await loop.sock_recv(client, MIB)
        if not part:
            break
        got += len(part)
    return got


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_a_peer_that_does_not_read_is_not_read_from(loop: str) -> None:
    async def test() -> None:
        limits = ConnectionLimits(buffered_bytes_per_connection=2 * MIB)
        async with echo_server(limits) as echo:
            clock = asyncio.get_running_loop()
            client = await silent_client(echo)
            await clock.sock_sendall(client, b"BIG %d" % (12 * MIB))
            await echo.until(lambda: echo.hub.counters.paused[PEER_READS_NOTHING])
            assert echo.hub.held_bytes > MIB
            seen = len(echo.sessions[0].received)
            await clock.sock_sendall(client, b"more")
            for _ in range(20):
                await next_turn()
            assert len(echo.sessions[0].received) == seen
            assert await read_all(client, 12 * MIB + 4) == 12 * MIB + 4
            assert echo.sessions[0].received.endswith(b"more")
            await echo.until(lambda: echo.hub.held_bytes == 0)
            client.close()

    run(loop, test)


def test_a_session_hears_when_it_may_go_on_writing(loop: str) -> None:
    async def test() -> None:
        async with echo_server() as echo:
            client = await silent_client(echo)
            await asyncio.get_running_loop().sock_sendall(client, b"BIG %d" % (12 * MIB))
            await echo.until(lambda: echo.sessions and echo.hub.held_bytes > CONGESTED_BYTES)
            session = echo.sessions[0]
            assert session.outlet.congested
            assert session.writable_calls == 0
            await read_all(client, 12 * MIB)
            await echo.until(lambda: session.writable_calls)
            assert session.writable_calls == 1
            assert not session.outlet.congested
            client.close()

    run(loop, test)


def test_a_session_may_pause_for_several_reasons(loop: str) -> None:
    async def test() -> None:
        async with echo_server() as echo:
            reader, writer = await echo.connect()
            writer.write(b"one")
            await reader.readexactly(3)
            outlet = echo.sessions[0].outlet
            outlet.pause("pending")
            outlet.pause("pending")
            outlet.pause("other")
            writer.write(b"two")
            outlet.resume("pending")
            for _ in range(20):
                await next_turn()
            assert echo.sessions[0].received == b"one"
            outlet.resume("other")
            assert await reader.readexactly(3) == b"two"
            assert echo.hub.counters.paused == {"pending": 1, "other": 1}
            await hang_up(writer)

    run(loop, test)


def test_all_connections_together_have_a_budget(loop: str) -> None:
    async def test() -> None:
        limits = ConnectionLimits(buffered_bytes_total=4 * MIB, stall_time_s=30)
        async with echo_server(limits) as echo:
            clock = asyncio.get_running_loop()
            client = await silent_client(echo)
            await clock.sock_sendall(client, b"BIG %d" % (12 * MIB))
            await echo.until(lambda: echo.hub.counters.paused[NO_MEMORY] == 1)
            # Somebody who needs no memory is served as before.
            reader, writer = await echo.connect()
            writer.write(b"quick")
            assert await reader.readexactly(5) == b"quick"
            # Somebody who does is not read from until there is memory again.
            writer.write(b"HOLD 100")
            await reader.readexactly(2)
            await echo.until(lambda: echo.hub.counters.paused[NO_MEMORY] == 2)
            writer.write(b"waits")
            for _ in range(20):
                await next_turn()
            assert echo.sessions[1].received == b"quickHOLD 100"
            await read_all(client, 12 * MIB)
            assert await reader.readexactly(5) == b"waits"
            client.close()
            await hang_up(writer)
            await echo.until(lambda: not echo.hub.connections)
            assert echo.hub.held_bytes == 0

    run(loop, test)


def test_who_holds_all_memory_without_moving_has_to_go(loop: str) -> None:
    async def test() -> None:
        limits = ConnectionLimits(buffered_bytes_total=4 * MIB, stall_time_s=0.05)
        async with echo_server(limits) as echo:
            client = await silent_client(echo)
            await asyncio.get_running_loop().sock_sendall(client, b"BIG %d" % (12 * MIB))
            await echo.until(lambda: echo.hub.counters.closed)
            assert echo.hub.counters.closed == {"buffered_bytes_total": 1}
            await echo.until(lambda: not echo.hub.connections)
            assert echo.hub.held_bytes == 0
            client.close()

    run(loop, test)


# --- log lines -----------------------------------------------------------------------------------


def test_one_log_line_per_address_and_minute(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = PeerLog(lambda: now[0])
    for now[0] in (0.0, 30.0, 59.0, 60.0, 100.0):
        log.note("10.0.0.1", "10.0.0.1:5", "at fault")
    log.note("10.0.0.2", "10.0.0.2:5", "at fault")
    assert len(caplog.records) == 3
    for number in range(PEER_LOG_ADDRESSES * 2):
        log.note(f"address {number}", "peer", "at fault")
    assert len(log._last) == PEER_LOG_ADDRESSES
