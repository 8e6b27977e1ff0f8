"""BlipMQ's client: async first, with a blocking wrapper (`connect_blipmq`)."""

from penstock.client.blipmq.client import FIRST_ID, BlipMQClient, connect_blipmq
from penstock.client.blipmq.subscription import Batch, Message, Subscription

__all__ = ["FIRST_ID", "Batch", "BlipMQClient", "Message", "Subscription", "connect_blipmq"]
