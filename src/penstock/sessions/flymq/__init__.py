"""A FlyMQ conversation."""
