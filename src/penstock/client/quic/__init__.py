"""QUIC for the clients: connections that reconnect, streams with backpressure, trust in certificates."""

from penstock.client.quic.trust import QuicTrust

__all__ = ["QuicTrust"]
