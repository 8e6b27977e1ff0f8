"""Fujin's client: async first, with a blocking wrapper (`connect_fujin`)."""

from penstock.client.fujin.client import FujinClient, connect_fujin
from penstock.client.fujin.reader import Batch, Consumer, Outcome, Subscription
from penstock.client.fujin.writer import Writer
from penstock.client.quic.trust import QuicTrust

__all__ = [
    "Batch",
    "Consumer",
    "FujinClient",
    "Outcome",
    "QuicTrust",
    "Subscription",
    "Writer",
    "connect_fujin",
]
