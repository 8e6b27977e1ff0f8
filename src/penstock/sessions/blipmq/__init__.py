"""A BlipMQ conversation."""
