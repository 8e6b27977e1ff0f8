"""QUIC: the port that engines stand behind (port.py), the Python engine, and connections and streams
on it."""
