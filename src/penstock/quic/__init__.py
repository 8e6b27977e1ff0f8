"""QUIC connections without sockets of their own, and a UDP socket in bursts: what server and clients share.

Knows no event loop, no protocol, and not on which side it is used.
"""
