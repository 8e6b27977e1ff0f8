"""FlyMQ on the wire."""
