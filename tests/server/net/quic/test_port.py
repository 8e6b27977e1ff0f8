"""The port of QUIC engines: what every engine must do, whatever is behind it. Real sockets on loopback."""

from collections.abc import Iterator
from typing import Any

import pytest
from kit.quic_peer import Library, QuicPeer, run_until
from server.net.quic.bench import ENGINES, Bench

from penstock.server.net.quic.port import MIB, NO_STREAM, NoApplication

# The clients: each library, and quic-go's way without a connection id of its own.
PEERS: dict[str, tuple[Library, dict[str, Any]]] = {
    "qh3": ("qh3", {}),
    "aioquic": ("aioquic", {}),
    "empty-id": ("aioquic", {"empty_id": True}),
}


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bench(engine_name: str) -> Iterator[Bench]:
    with Bench(ENGINES[engine_name]) as made:
        yield made


def connect(bench: Bench, kind: str = "qh3", **options: Any) -> tuple[QuicPeer, int]:
    """A peer and the serial number of its connection."""
    library, how = PEERS[kind]
    peer = QuicPeer(bench.port, library, **how, **options)
    known = set(bench.opened)
    run_until(lambda: len(bench.opened) > len(known) and peer.connected, [bench, peer])
    return peer, next(iter(set(bench.opened) - known))


@pytest.mark.parametrize("kind", PEERS)
def test_a_stream_both_ways(bench: Bench, kind: str) -> None:
    bench.echo = True
    peer, connection = connect(bench, kind, applications=["echo"])
    with peer:
        assert bench.opened[connection] == "echo"
        assert peer.application == "echo"
        stream = peer.open()
        peer.send(stream, b"hello")
        run_until(lambda: bytes(peer.received[stream]) == b"hello", [bench, peer])
        peer.send(stream, b" and goodbye", fin=True)
        run_until(lambda: stream in peer.finished, [bench, peer])
        assert bytes(peer.received[stream]) == b"hello and goodbye"
        assert bench.finished == {(connection, stream)}


@pytest.mark.parametrize("kind", PEERS)
def test_bulk_arrives_whole_and_in_order(bench: Bench, kind: str) -> None:
    bench.echo = True
    peer, connection = connect(bench, kind)
    content = b"".join(number.to_bytes(4, "big") for number in range(300_000))
    with peer:
        stream = peer.open()
        peer.send(stream, content, fin=True)
        run_until(lambda: stream in peer.finished, [bench, peer])
        assert bytes(bench.received[connection, stream]) == content
        assert bytes(peer.received[stream]) == content
    assert bench.engine.statistics().lost_packets == 0


@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize("unidirectional", [True, False])
def test_streams_that_the_server_opens(bench: Bench, kind: str, unidirectional: bool) -> None:
    peer, connection = connect(bench, kind)
    with peer:
        first = bench.engine.open(connection, unidirectional)
        second = bench.engine.open(connection, unidirectional)
        assert [first, second] == ([3, 7] if unidirectional else [1, 5])
        bench.engine.send_many(
            [(connection, second, b"two", True), (connection, first, b"one", True)]
        )
        run_until(lambda: {first, second} <= peer.finished, [bench, peer])
        assert (bytes(peer.received[first]), bytes(peer.received[second])) == (b"one", b"two")
        if not unidirectional:
            peer.send(first, b"pong", fin=True)
            run_until(lambda: (connection, first) in bench.finished, [bench, peer])


@pytest.mark.parametrize("kind", PEERS)
def test_resets_and_stops_of_both_sides(bench: Bench, kind: str) -> None:
    peer, connection = connect(bench, kind)
    with peer:
        for code in (5, 6, 7, 8):
            peer.send(peer.open(), bytes([code]))
        run_until(lambda: len(bench.received) == 4, [bench, peer])
        bench.engine.reset(connection, 0, 5)
        bench.engine.stop(connection, 4, 6)
        peer.quic.reset_stream(8, 7)
        peer.quic.stop_stream(12, 8)
        run_until(
            lambda: bool(peer.resets and peer.stops and bench.resets and bench.stops), [bench, peer]
        )
        assert (peer.resets[0], peer.stops[4]) == (5, 6)
        assert bench.resets[connection, 8] == 7
        assert bench.stops == {(connection, 12): 8}
        # The side that was stopped has ended: writing to it does nothing.
        bench.engine.send_many([(connection, 12, b"late", False)])
        run_until(lambda: 12 in peer.resets, [bench, peer])


@pytest.mark.parametrize("kind", PEERS)
def test_a_close_carries_its_code_and_reason(bench: Bench, kind: str) -> None:
    peer, connection = connect(bench, kind)
    bench.engine.close(connection, 3, "read: no pong")
    run_until(lambda: peer.closed is not None, [bench, peer])
    assert peer.closed == (3, "read: no pong")
    peer.vanish()
    other, second = connect(bench, kind)
    assert second != connection
    other.quic.close(error_code=9, reason_phrase="enough")
    run_until(lambda: second in bench.closed, [bench, other])
    assert bench.closed == {second: (9, b"enough")}
    other.vanish()


@pytest.mark.parametrize("kind", PEERS)
def test_a_paused_stream_stands_still_and_the_others_go_on(bench: Bench, kind: str) -> None:
    peer, connection = connect(bench, kind)
    with peer:
        slow, quick = peer.open(), peer.open()
        peer.send(slow, b"first")
        peer.send(quick, b"first")
        run_until(lambda: len(bench.received) == 2, [bench, peer])
        bench.engine.pause(connection, slow)
        content = bytes(3 * MIB)
        peer.send(slow, content, fin=True)
        peer.send(quick, content, fin=True)
        run_until(lambda: (connection, quick) in bench.finished, [bench, peer])
        assert bytes(bench.received[connection, slow]) == b"first"
        bench.engine.resume(connection, slow)
        run_until(lambda: (connection, slow) in bench.finished, [bench, peer])
        assert bytes(bench.received[connection, slow]) == b"first" + content


@pytest.mark.parametrize("kind", PEERS)
def test_what_a_peer_does_not_read_waits_and_is_counted(bench: Bench, kind: str) -> None:
    """The window of the peer bounds what is sent; the rest is queued, and the port says how much."""
    library, how = PEERS[kind]
    peer = QuicPeer(bench.port, library, **how, max_stream_data=64 * 1024)
    run_until(lambda: bool(bench.opened) and peer.connected, [bench, peer])
    connection = next(iter(bench.opened))
    with peer:
        stream = bench.engine.open(connection, True)
        queued = bench.engine.send_many([(connection, stream, bytes(4 * MIB), True)])
        assert queued == {connection: 4 * MIB}
        assert bench.engine.unacknowledged(connection)
        bench.step()
        assert bench.engine.queued_bytes(connection, stream) >= 4 * MIB - 64 * 1024
        run_until(lambda: stream in peer.finished, [bench, peer])
        run_until(lambda: not bench.engine.unacknowledged(connection), [bench, peer])
        assert bench.engine.queued_bytes(connection, stream) == 0
        assert len(peer.received[stream]) == 4 * MIB


@pytest.mark.parametrize("kind", PEERS)
def test_streams_as_many_as_the_settings_allow(engine_name: str, kind: str) -> None:
    with Bench(ENGINES[engine_name], streams=300) as bench:
        bench.echo = True
        peer, connection = connect(bench, kind)
        with peer:
            for _ in range(300):
                peer.send(peer.open(), b"x")
            run_until(lambda: len(peer.received) == 300, [bench, peer])
            # One more waits until others have ended.
            late = 4 * 300
            for stream in list(peer.received)[:150]:
                peer.send(stream, b"", fin=True)

            def sent() -> bool:
                try:
                    peer.send(late, b"x")
                except ValueError:  # qh3 itself refuses what the server does not allow yet
                    return False
                return True

            run_until(sent, [bench, peer])
            run_until(lambda: (connection, late) in bench.received, [bench, peer])


def test_streams_of_ours_wait_for_the_peer_to_allow_them(bench: Bench) -> None:
    peer, connection = connect(bench, "aioquic")
    with peer:
        streams: list[int] = []
        while (stream := bench.engine.open(connection, True)) != NO_STREAM:
            streams.append(stream)
        assert len(streams) == 128
        bench.engine.send_many([(connection, stream, b"x", True) for stream in streams])
        run_until(lambda: bench.streams_told > 0, [bench, peer])
        assert bench.engine.open(connection, True) != NO_STREAM


@pytest.mark.parametrize("kind", PEERS)
def test_a_handshake_without_a_name_in_common_is_refused_with_120(
    engine_name: str, kind: str
) -> None:
    def refuse(offered: Any) -> str | None:
        assert list(offered) == ["other"]
        raise NoApplication

    with Bench(ENGINES[engine_name], choose=refuse) as bench:
        library, how = PEERS[kind]
        peer = QuicPeer(bench.port, library, ["other"], **how)
        run_until(lambda: peer.closed is not None, [bench, peer])
        assert peer.closed is not None
        assert peer.closed[0] == 0x100 + 120
        assert not bench.opened
        peer.vanish()


@pytest.mark.parametrize("kind", PEERS)
def test_no_names_are_no_hindrance(bench: Bench, kind: str) -> None:
    peer, connection = connect(bench, kind)
    with peer:
        assert bench.opened[connection] == ""
        assert peer.application is None


@pytest.mark.parametrize("kind", ["qh3", "aioquic"])
def test_a_client_hello_in_two_packets(bench: Bench, kind: str) -> None:
    """Many names make it longer than one Initial."""
    names = [f"name-{number}-{'x' * 50}" for number in range(40)]
    peer, connection = connect(bench, kind, applications=names)
    with peer:
        assert bench.opened[connection] == names[0]


@pytest.mark.parametrize("kind", PEERS)
def test_an_address_must_be_proved_under_load(engine_name: str, kind: str) -> None:
    with Bench(ENGINES[engine_name], retry_from=0) as bench:
        bench.echo = True
        peer, _ = connect(bench, kind)
        with peer:
            stream = peer.open()
            peer.send(stream, b"hello")
            run_until(lambda: bytes(peer.received[stream]) == b"hello", [bench, peer])
        assert bench.engine.statistics().retries_sent > 0


def test_a_flood_of_first_packets_is_bounded(engine_name: str) -> None:
    """From many addresses, none of which completes: the engine keeps as many as it may, and still
    serves."""
    with Bench(ENGINES[engine_name], retry_from=20, half_open=30) as bench:
        floods = [QuicPeer(bench.port) for _ in range(60)]
        for flood in floods:
            flood.step()
            bench.step()
            flood.vanish()
        run_until(lambda: bench.engine.statistics().retries_sent >= 40, [bench])
        assert bench.engine.statistics().half_open <= 20
        peer, _ = connect(bench)
        peer.close()


def test_connections_are_bounded(engine_name: str) -> None:
    with Bench(ENGINES[engine_name], connections=2) as bench:
        peers = [connect(bench)[0] for _ in range(2)]
        third = QuicPeer(bench.port)
        third.step()
        run_until(lambda: "connections" in bench.engine.statistics().dropped, [bench, third])
        assert bench.engine.statistics().connections == 2
        for peer in (*peers, third):
            peer.vanish()


def test_half_open_connections_end(engine_name: str) -> None:
    with Bench(ENGINES[engine_name], handshake_time_s=0.2) as bench:
        peer = QuicPeer(bench.port)
        peer.step()
        peer.vanish()
        run_until(lambda: bench.engine.statistics().half_open == 1, [bench])
        run_until(lambda: bench.engine.statistics().half_open == 0, [bench])


def test_a_version_that_we_do_not_speak_is_negotiated(bench: Bench) -> None:
    peer = QuicPeer(bench.port)
    packet = peer.quic.datagrams_to_send(0.0)[0][0]
    peer.put(packet[:1] + b"\x1a\x2a\x3a\x4a" + packet[5:])
    answers: list[bytes] = []

    def answered() -> bool:
        try:
            answers.append(peer.socket.recv(65_535))
        except BlockingIOError:
            return False
        return True

    run_until(answered, [bench])
    assert answers[0][1:5] == bytes(4)
    assert answers[0].endswith(b"\x00\x00\x00\x01")
    # A small one gets no answer: it could be an amplification.
    peer.put((packet[:1] + b"\x1a\x2a\x3a\x4a" + packet[5:])[:1199])
    run_until(lambda: "small_initial" in bench.engine.statistics().dropped, [bench])
    peer.vanish()


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\xff" * 8, b"\xc0\x00\x00\x00\x01\xff", b"x" * 1300, b"\xc0" * 1300]
)
def test_bytes_that_are_no_quic_do_no_harm(bench: Bench, data: bytes) -> None:
    peer, _ = connect(bench)
    with peer:
        before = bench.engine.statistics().datagrams_in
        peer.put(data or b"\x40")
        run_until(lambda: bench.engine.statistics().datagrams_in > before, [bench])
        bench.echo = True
        stream = peer.open()
        peer.send(stream, b"still here")
        run_until(lambda: bytes(peer.received[stream]) == b"still here", [bench, peer])


@pytest.mark.parametrize("kind", PEERS)
def test_a_peer_that_vanishes_is_noticed(engine_name: str, kind: str) -> None:
    with Bench(ENGINES[engine_name], idle_time_s=0.5, keep_alive_s=None) as bench:
        peer, connection = connect(bench, kind)
        peer.vanish()
        run_until(lambda: connection in bench.closed, [bench])
        run_until(lambda: bench.engine.statistics().connections == 0, [bench])


@pytest.mark.parametrize("kind", PEERS)
def test_an_idle_peer_stays_with_a_keep_alive(engine_name: str, kind: str) -> None:
    """Its own idle time is over many times before the end."""
    library, how = PEERS[kind]
    with Bench(ENGINES[engine_name], keep_alive_s=0.05) as bench:
        peer = QuicPeer(bench.port, library, **how, idle_timeout=0.4)
        run_until(lambda: bool(bench.opened) and peer.connected, [bench, peer])
        before = bench.engine.statistics().datagrams_out
        run_until(lambda: bench.engine.statistics().datagrams_out > before + 25, [bench, peer])
        assert peer.closed is None
        peer.vanish()


def test_plain_datagrams_where_the_kernel_joins_none(engine_name: str) -> None:
    with Bench(ENGINES[engine_name], offload=False) as bench:
        bench.echo = True
        peer, _ = connect(bench)
        with peer:
            stream = peer.open()
            peer.send(stream, bytes(MIB), fin=True)
            run_until(lambda: stream in peer.finished, [bench, peer])
            assert len(peer.received[stream]) == MIB


def test_several_connections_on_one_socket(bench: Bench) -> None:
    """As a client library with one socket has it: the kernel may join datagrams of all of them."""
    bench.echo = True
    peers = [QuicPeer(bench.port) for _ in range(3)]
    shared = peers[0].socket
    for other in peers[1:]:
        other.socket.close()
        other.socket = shared
    by_id = {bytes(peer.quic.host_cid): peer for peer in peers}

    class Shared:
        """Reads for all of them."""

        def fileno(self) -> int:
            return shared.fileno()

        def step(self) -> float | None:
            import time

            while True:
                try:
                    data, address = shared.recvfrom(65_535)
                except BlockingIOError:
                    break
                length = len(next(iter(by_id)))
                found = data[6 : 6 + length] if data[0] & 0x80 else data[1 : 1 + length]
                by_id.get(bytes(found), peers[0]).quic.receive_datagram(
                    data, address, time.monotonic()
                )
            return min(peer.step() or 0.0 for peer in peers)

    party = Shared()
    run_until(lambda: all(peer.connected for peer in peers), [bench, party])
    for peer in peers:
        peer.send(peer.open(), bytes(300_000), fin=True)
    run_until(lambda: all(0 in peer.finished for peer in peers), [bench, party])
    assert len(bench.finished) == 3
    shared.close()
