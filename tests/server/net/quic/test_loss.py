"""A network that drops, doubles, reorders 5 percent of its datagrams: nothing is lost or doubled."""

import pytest
from kit.quic_peer import QuicPeer, Stepped, run_until
from kit.udp_shim import UdpShim
from server.net.quic.bench import ENGINES, Bench
from server.net.quic.test_port import PEERS

CONTENT = b"".join(number.to_bytes(4, "big") for number in range(100_000))


@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_streams_both_ways_over_a_bad_network(engine: str, kind: str) -> None:
    library, how = PEERS[kind]
    with Bench(ENGINES[engine]) as bench:
        bench.echo = True
        shim = UdpShim(bench.port, seed=11)
        peer = QuicPeer(shim.port, library, **how)
        parties: list[Stepped] = [bench, shim, peer]
        run_until(lambda: peer.connected and bool(bench.opened), parties)
        connection = next(iter(bench.opened))
        for _ in range(4):
            peer.send(peer.open(), CONTENT, fin=True)
        ours = bench.engine.open(connection, True)
        bench.engine.send_many([(connection, ours, CONTENT, True)])
        run_until(lambda: len(peer.finished) == 5, parties)
        assert all(bytes(data) == CONTENT for data in peer.received.values())
        assert all(bytes(data) == CONTENT for data in bench.received.values())
        assert min(shim.fates.values()) > 10
        peer.close()
        shim.close()


def _short_streams(engine: str, kind: str, seed: int) -> None:
    """A lost frame of a stream that is acknowledged meanwhile is the case that qh3's core stumbles over:
    many streams of one packet, both ways at once, with their ends."""
    library, how = PEERS[kind]
    with Bench(ENGINES[engine]) as bench:
        bench.echo = True
        shim = UdpShim(bench.port, seed=seed)
        peer = QuicPeer(shim.port, library, **how)
        parties: list[Stepped] = [bench, shim, peer]
        run_until(lambda: peer.connected and bool(bench.opened), parties)
        connection = next(iter(bench.opened))
        for turn in range(10):
            sent = {}
            for number in range(30):
                stream = peer.open()
                sent[stream] = bytes([number]) * (1 + 40 * number)
                peer.send(stream, sent[stream], fin=True)
            ours = bench.engine.open(connection, True)
            bench.engine.send_many([(connection, ours, b"%d" % turn, True)])
            sent[ours] = b"%d" % turn
            run_until(lambda wanted=set(sent): wanted <= peer.finished, parties)  # type: ignore[misc]
            assert {one: bytes(peer.received[one]) for one in sent} == sent
        assert bench.closed == {}
        assert bench.engine.statistics().dropped.get("broken", 0) == 0
        peer.close()
        shim.close()


# A peer by qh3 with its own way of driving the core stumbles itself.
OTHERS = ("aioquic", "empty-id")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_many_short_streams_over_a_bad_network(engine: str, kind: str, seed: int) -> None:
    _short_streams(engine, kind, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 300))
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_many_short_streams_again_and_again(engine: str, kind: str, seed: int) -> None:
    _short_streams(engine, kind, seed)
