"""What the peer is told: windows that the socket's buffer can hold, streams as in the settings."""

from typing import Any

import pytest
from kit.quic_peer import QuicPeer, run_until
from server.net.quic.bench import ENGINES, Bench
from server.net.quic.test_port import PEERS, connect

from penstock.quic.events import CONNECTION_WINDOW_BYTES, MIB, STREAM_WINDOW_BYTES


def told(peer: QuicPeer) -> tuple[int, int, int]:
    """Window of the connection, window of a stream, streams: what the server's transport parameters say."""
    quic: Any = peer.quic
    if hasattr(quic, "_core"):
        parameters = quic._tls.remote_transport_parameters
        return (
            parameters.initial_max_data,
            parameters.initial_max_stream_data_bidi_remote,
            parameters.initial_max_streams_bidi,
        )
    return (
        quic._remote_max_data,
        quic._remote_max_stream_data_bidi_remote,
        quic._remote_max_streams_bidi,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", PEERS)
class TestEach:
    def test_as_in_the_settings(self, engine: str, kind: str) -> None:
        with Bench(ENGINES[engine], streams=777, stream_window_bytes=300_000) as bench:
            peer, _ = connect(bench, kind)
            with peer:
                assert told(peer)[1:] == (300_000, 777)

    def test_never_more_than_the_socket_holds(self, engine: str, kind: str) -> None:
        huge = 1024 * MIB
        with Bench(
            ENGINES[engine], stream_window_bytes=huge, connection_window_bytes=huge
        ) as bench:
            peer, _ = connect(bench, kind)
            with peer:
                connection, stream, _ = told(peer)
                assert stream <= connection <= CONNECTION_WINDOW_BYTES

    def test_by_default(self, engine: str, kind: str) -> None:
        with Bench(ENGINES[engine]) as bench:
            peer, _ = connect(bench, kind)
            with peer:
                connection, stream, _ = told(peer)
                assert connection <= CONNECTION_WINDOW_BYTES
                assert stream == min(STREAM_WINDOW_BYTES, connection)

    def test_no_packet_is_lost_on_an_idle_loopback(self, engine: str, kind: str) -> None:
        """Neither way: both sides take what comes before more comes."""
        with Bench(ENGINES[engine]) as bench:
            bench.echo = True
            peer, _ = connect(bench, kind)
            with peer:
                streams = [peer.open() for _ in range(4)]
                for stream in streams:
                    peer.send(stream, bytes(MIB // 2), fin=True)
                run_until(lambda: set(streams) <= peer.finished, [bench, peer])
                assert bench.engine.statistics().lost_packets == 0
