"""A gateway that increments a counter for ever, and prints each version, until somebody kills it.

gateway_child.py BROKERS TOPIC
"""

import sys

from kit.kafka_metadata import increment

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.metadata.store import KafkaMetadata

if __name__ == "__main__":
    brokers, topic = sys.argv[1:]
    metadata = KafkaMetadata(Clients(KafkaOptions(brokers)), topic=topic)
    while True:
        print(increment(metadata), flush=True)
