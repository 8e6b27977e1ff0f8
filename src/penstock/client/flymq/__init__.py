"""A client for FlyMQ servers, ours or not."""

from penstock.client.flymq.client import FlyMQClient, connect_flymq
from penstock.client.flymq.producer import Producer
from penstock.client.flymq.records import FetchedBatch

__all__ = ["FetchedBatch", "FlyMQClient", "Producer", "connect_flymq"]
