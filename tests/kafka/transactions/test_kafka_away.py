"""Kafka goes away and comes back: clear errors meanwhile, and exactly once in the end."""

from pathlib import Path

import pytest
from kit.kafka_steps import ALL, at_once, stage, stage_and_commit
from kit.kafka_transactions import Gateways
from kit.outside_servers import KafkaServer
from kit.transactions import HOUR_US

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.cluster import KafkaAway
from penstock.kafka.transactions.own_topics import ensure_topics
from penstock.log.errors import AppendFailed, DecisionUnknown, LogError
from penstock.log.metadata_errors import MetadataError


def test_killed_and_started_again(tmp_path: Path) -> None:
    with KafkaServer(tmp_path) as server:
        gateways = Gateways(server.brokers)
        gateways.make("a", 2)
        gateways.make("b", 1)
        with gateways.opened:
            impatient = gateways.open(reach_s=2.0)
            patient = gateways.open()
            stage(gateways, impatient)
            once = Gateways(server.brokers, gateways.suffix, topics=gateways.topics)
            server.kill()
            with pytest.raises((MetadataError, LogError)):
                stage_and_commit(gateways, impatient)
            with pytest.raises((AppendFailed, DecisionUnknown)):
                impatient.commit_at_once(gateways.name("r"), [])
            with pytest.raises(KafkaAway, match=r"see kafka\.bootstrap"):
                ensure_topics(Clients(KafkaOptions(server.brokers, reach_s=1.0)), None)
            server.start()
            stage(gateways, patient)
            stage_and_commit(gateways, patient)
            assert gateways.everything() == ALL
            stage_and_commit(gateways, impatient)
            at_once(once, impatient)
            assert gateways.everything() == ALL
            assert impatient.begin(gateways.name("q"), HOUR_US) == "committed"
