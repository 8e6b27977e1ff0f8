"""Sessions, one package per protocol. Bytes in, broker calls, bytes out. No sockets."""
