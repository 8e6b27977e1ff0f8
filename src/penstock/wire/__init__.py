"""Bytes to frames and back, one module per protocol. No sockets, no clock, no session state."""
