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
