"""A client for FlyMQ servers, ours or not."""

from penstock.client.flymq.client import FetchedBatch, FlyMQClient, connect_flymq

__all__ = ["FetchedBatch", "FlyMQClient", "connect_flymq"]
