"""Connections and streams above the port: sessions on streams of either side, their ends, budgets and
drains."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest
from server.net.quic.bench import ENGINES
from server.net.quic.driving import Served, serving
from server.net.quic.echo.session import EchoConnection

from penstock.server.net.hub import ConnectionLimits

MIB = 1024 * 1024


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_a_session_on_each_stream() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            streams = [
                await served.ask(peer, b"hello %d" % number, fin=True) for number in range(50)
            ]
            await served.driver.until(lambda: set(streams) <= peer.finished)
            assert bytes(peer.received[streams[7]]) == b"hello 7"
            await served.driver.until(lambda: len(EchoConnection.latest.ended) == 50)
            assert EchoConnection.latest.ended[0].told == ["end", "closed"]
            assert served.hub.held_bytes == 0
            traffic = served.hub.counters.of("echo")
            assert (traffic.open, traffic.bytes_in) == (1, traffic.bytes_out)

    run(test())


def test_streams_of_the_server() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            await served.ask(peer, b"push 100000\n")
            await served.ask(peer, b"ping\n")
            await served.driver.until(lambda: {3, 1} <= peer.finished)
            assert bytes(peer.received[3]) == b"p" * 100_000
            assert bytes(peer.received[1]) == b"\x0b"
            peer.send(1, b"pong", fin=True)
            await served.driver.until(lambda: len(EchoConnection.latest.ended) == 2)
            pushed, pinged = EchoConnection.latest.ended
            assert pushed.told == ["closed"]
            assert (bytes(pinged.received), pinged.told) == (b"pong", ["end", "closed"])

    run(test())


@pytest.mark.parametrize("engine", ENGINES)
def test_streams_of_the_server_wait_for_the_peer(engine: str) -> None:
    async def test() -> None:
        async with serving(engine=engine) as served:
            peer = await served.connect(library="aioquic")
            for _ in range(200):
                await served.ask(peer, b"push 1\n", fin=True)
            ours = {3 + 4 * number for number in range(200)}
            await served.driver.until(lambda: ours <= peer.finished)

    run(test())


@pytest.mark.parametrize(
    ("command", "resets", "stops"), [(b"reset\n", {0: 11}, {}), (b"stop\n", {}, {0: 12})]
)
def test_a_session_ends_one_side(
    command: bytes, resets: dict[int, int], stops: dict[int, int]
) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            await served.ask(peer, command)
            await served.driver.until(lambda: bool(peer.resets or peer.stops))
            assert (peer.resets, peer.stops) == (resets, stops)
            # The connection and its other streams live on.
            other = await served.ask(peer, b"still here")
            await served.driver.until(lambda: bytes(peer.received[other]) == b"still here")

    run(test())


def test_after_its_finish_a_session_goes_on_reading() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            stream = await served.ask(peer, b"finish\n")
            await served.driver.until(lambda: stream in peer.finished)
            assert bytes(peer.received[stream]) == b"last"
            peer.send(stream, b"more", fin=True)
            await served.driver.until(lambda: bool(EchoConnection.latest.ended))
            assert bytes(EchoConnection.latest.ended[0].received) == b"finish\nmore"

    run(test())


def test_what_the_peer_gives_up_is_told() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            first = await served.ask(peer, b"one")
            second = await served.ask(peer, b"two")
            await served.driver.until(lambda: len(peer.received) == 2)
            peer.quic.reset_stream(first, 21)
            peer.quic.stop_stream(second, 22)
            peer.send(second, b"", fin=True)
            await served.driver.until(lambda: len(EchoConnection.latest.ended) == 2)
            told = {session.stream.number: session.told for session in EchoConnection.latest.ended}
            assert told[first] == ["reset 21", "closed"]
            assert told[second] == ["stopped 22", "end", "closed"]

    run(test())


def test_a_protocol_closes_the_connection() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            await served.ask(peer, b"close\n")
            await served.driver.until(lambda: peer.closed is not None)
            assert peer.closed == (7, "as told")
            assert EchoConnection.latest.told == ["closed"]
            assert not served.hub.connections
            assert served.hub.counters.of("echo").open == 0

    run(test())


def test_the_peer_closes_or_vanishes() -> None:
    async def test() -> None:
        async with serving(idle_time_s=0.5, keep_alive_s=None) as served:
            for leaves in (True, False):
                peer = await served.connect()
                stream = await served.ask(peer, b"x")
                await served.driver.until(partial(_has, peer.received, stream))
                latest = EchoConnection.latest
                served.driver.remove(peer)
                if leaves:
                    peer.close(0)
                else:
                    peer.vanish()
                await served.driver.until(lambda: not served.hub.connections)
                assert latest.told == ["closed"]
                assert latest.ended[0].told == ["closed"]

    run(test())


def test_a_bug_of_a_session_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving() as served:
            good, bad = await served.connect(), await served.connect()
            await served.ask(bad, b"fail\n")
            await served.driver.until(lambda: bad.closed is not None)
            assert bad.closed == (2, "internal error")
            stream = await served.ask(good, b"still here")
            await served.driver.until(lambda: bytes(good.received[stream]) == b"still here")
            assert served.hub.counters.closed["internal_error"] == 1

    run(test())
    assert "the echo session failed" in caplog.text


def test_names_lead_to_protocols() -> None:
    async def test() -> None:
        async with serving() as served:
            await served.connect("echo")
            await served.connect(None)
            await served.connect("whatever")
            assert {name: one.open for name, one in served.hub.counters.traffic.items()} == {
                "echo": 1,
                "plain": 2,
            }
            refused = served.driver.add(_peer(served, "echo/2"))
            await served.driver.until(lambda: refused.closed is not None)
            assert refused.closed is not None
            assert refused.closed[0] == 0x100 + 120

    run(test())


def _has(found: Any, stream: int) -> bool:
    return stream in found


def _peer(served: Served, application: str) -> Any:
    from kit.quic_peer import QuicPeer

    return QuicPeer(served.listener.address.port, applications=[application])


# --- budgets --------------------------------------------------------------------------------------


def test_a_slow_reader_stops_its_own_stream() -> None:
    """The bytes that wait for it are bounded, however much there is to push; other streams go on."""

    async def test() -> None:
        async with serving() as served:
            peer = await served.connect(library="aioquic", max_stream_data=64 * 1024)
            # A window that stands still: the application of this peer does not read this stream.
            peer.quic._write_stream_limits = lambda **_: None
            await served.ask(peer, b"push %d\n" % (64 * MIB))
            await served.driver.until(lambda: len(peer.received[3]) == 64 * 1024)
            for number in range(20):
                stream = await served.ask(peer, b"quick %d" % number, fin=True)
                await served.driver.until(partial(_has, peer.finished, stream))
            assert served.hub.held_bytes < 4 * MIB
            pushed = next(one for one in EchoConnection.latest.streams if one.stream.number == 3)
            assert pushed.busy()

    run(test())


@pytest.mark.parametrize("empty_id", [False, True])
def test_a_paused_stream_is_not_read(empty_id: bool) -> None:
    """Its bytes stay with the peer, but for its window; the others go on."""

    async def test() -> None:
        async with serving() as served:
            peer = await served.connect(library="aioquic", empty_id=empty_id)
            held = await served.ask(peer, b"hold\n")
            await served.driver.until(lambda: bool(EchoConnection.latest.held))
            content = bytes(8 * MIB)
            peer.send(held, content, fin=True)
            # It goes on by itself where the others may: in qh3 only until its own window is held.
            stream = await served.ask(peer, b"quick", fin=True)
            await served.driver.until(lambda: stream in peer.finished)
            session = EchoConnection.latest.streams[0]
            assert bytes(session.received) == b"hold\n"
            EchoConnection.latest.held.pop().resume("held")
            await served.driver.until(lambda: held in peer.finished)
            assert len(session.received) == len(content) + 5

    run(test())


def test_bulk_both_ways_at_once() -> None:
    async def test() -> None:
        async with serving() as served:
            peers = [await served.connect() for _ in range(2)]
            # More than may wait for a peer: the session has to wait with its answers, and then to finish.
            content = bytes(range(256)) * 4096 * 4
            for peer in peers:
                for _ in range(2):
                    await served.ask(peer, content, fin=True)
            await served.driver.until(lambda: all(len(peer.finished) == 2 for peer in peers))
            for peer in peers:
                assert all(bytes(data) == content for data in peer.received.values())
            assert served.hub.held_bytes == 0

    run(test())


@pytest.mark.parametrize("limit", ["connections", "connections_per_address"])
def test_limits_of_connections(limit: str) -> None:
    async def test() -> None:
        async with serving(ConnectionLimits(**{limit: 1})) as served:
            await served.connect()
            second = await served.connect()
            await served.driver.until(lambda: second.closed is not None)
            assert second.closed == (5, f"limits.{limit} reached")
            assert served.hub.counters.refused[limit] == 1

    run(test())


# --- the end of the server ------------------------------------------------------------------------


def test_a_drain_sends_everything_and_closes_with_0() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            stream = await served.ask(peer, b"hello")
            await served.ask(peer, b"push %d\n" % (2 * MIB))
            await served.driver.until(lambda: bool(peer.received[stream]))
            (connection,) = served.hub.connections
            connection.drain()
            await served.driver.until(lambda: not connection.busy())
            connection.close()
            await served.driver.until(lambda: peer.closed is not None)
            assert peer.closed == (0, "")
            assert bytes(peer.received[stream]) == b"hellobye"
            assert {stream, 3} <= peer.finished
            assert len(peer.received[3]) == 2 * MIB
            assert connection.finished()
            assert EchoConnection.latest.told == ["drain", "closed"]
            assert not served.hub.connections

    run(test())


def test_a_listener_that_is_closed_takes_no_new_ones() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            served.listener.close()
            other = served.driver.add(_peer(served, "echo"))
            engine = served.listener.served[0].engine
            await served.driver.until(lambda: "unknown_connection" in engine.statistics().dropped)
            stream = await served.ask(peer, b"still here")
            await served.driver.until(lambda: bytes(peer.received[stream]) == b"still here")
            assert not other.connected

    run(test())
