"""Felix's client: async first, with a blocking wrapper (`connect_felix`)."""

from penstock.client.felix.client import FelixClient, FrameTooLarge, connect_felix
from penstock.client.felix.subscription import Batch, EventMissed, Subscription
from penstock.client.quic.trust import QuicTrust

__all__ = [
    "Batch",
    "EventMissed",
    "FelixClient",
    "FrameTooLarge",
    "QuicTrust",
    "Subscription",
    "connect_felix",
]
