"""Conversations: one module per protocol. Bytes in, broker calls, bytes out. No sockets."""
