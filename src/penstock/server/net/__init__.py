"""Sockets: listeners, TLS, protocol sniffing, connections and their limits."""
