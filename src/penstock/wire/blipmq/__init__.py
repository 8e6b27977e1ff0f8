"""BlipMQ: bytes to frames and back."""
