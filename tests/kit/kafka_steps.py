"""One transaction over Kafka, in the same words for the gateway that dies and for the one that goes on."""

from kit.engines import batch
from kit.kafka_transactions import Gateways
from kit.transactions import HOUR_US
from penstock.kafka.transactions.transactions import KafkaTransactions
from penstock.log.engine import Target

# What it shows.
ALL = {"a/0": [b"1.0", b"2.0"], "a/1": [b"1.1"], "b/0": [b"2.1"]}


def _groups(gateways: Gateways, task: int) -> list[list[Target]]:
    """Two of one batch each."""
    places = {1: [("a", 0), ("a", 1)], 2: [("a", 0), ("b", 0)]}[task]
    return [
        [(gateways.name(topic), partition, batch(b"%d.%d" % (task, number)))]
        for number, (topic, partition) in enumerate(places)
    ]


def stage(gateways: Gateways, transactions: KafkaTransactions) -> None:
    """The first task."""
    if transactions.begin(gateways.name("q"), HOUR_US) == "open":
        transactions.stage_groups(gateways.name("q"), 1, _groups(gateways, 1), 0)


def stage_and_commit(gateways: Gateways, transactions: KafkaTransactions) -> None:
    if transactions.begin(gateways.name("q"), HOUR_US) == "open":
        transactions.stage_groups(gateways.name("q"), 2, _groups(gateways, 2), 0)
        transactions.commit(gateways.name("q"), {1: 2, 2: 2}, 4)


def at_once(gateways: Gateways, transactions: KafkaTransactions) -> None:
    targets = [one for task in (1, 2) for group in _groups(gateways, task) for one in group]
    transactions.commit_at_once(gateways.name("q"), targets)
