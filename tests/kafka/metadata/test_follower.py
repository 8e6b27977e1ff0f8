"""What the follower meets in a topic: messages of others, newer formats, a topic that was made anew."""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest
from kit.limits import HANG_S
from kit.outside_servers import KafkaServer

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.metadata.layout import FORMAT, MARK_KEY, Mark, mark_value, record_key
from penstock.kafka.metadata.store import KafkaMetadata
from penstock.log.metadata_errors import MetadataTooNew
from penstock.log.records import Put, RecordChange

Gateway = Callable[[], KafkaMetadata]


def send(server: KafkaServer, topic: str, *messages: tuple[bytes | None, bytes]) -> None:
    """As another program would."""
    producer = Clients(KafkaOptions(server.brokers)).producer()
    for key, value in messages:
        producer.produce(topic, value, key)
    assert producer.flush(HANG_S) == 0


def test_messages_of_other_programs_are_left_out_and_told(
    gateway: Gateway, kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = gateway()
    one.change([Put("s", "a", b"1")]).result(HANG_S)
    send(kafka_server, topic, (None, b"x"), (b"key", b"y"), (record_key("s", "a"), b"2"))
    send(kafka_server, topic, (MARK_KEY, b"z"))
    one.refresh().result(HANG_S)
    one.change([Put("s", "b", b"2")]).result(HANG_S)
    for gateways in (one, gateway()):
        assert [(found.name, found.value) for found in gateways.list("s")] == [
            ("a", b"1"),
            ("b", b"2"),
        ]
    assert "offset 3 was left out" in caplog.text


def test_a_newer_format_is_refused(gateway: Gateway, kafka_server: KafkaServer, topic: str) -> None:
    one = gateway()
    one.change([Put("s", "a", b"1")]).result(HANG_S)
    send(kafka_server, topic, (MARK_KEY, mark_value(Mark(9, bytes(16), FORMAT + 1))))
    with pytest.raises(MetadataTooNew, match=f"version {FORMAT + 1}"):
        KafkaMetadata(Clients(KafkaOptions(kafka_server.brokers)), topic=topic)
    while one.trouble is None:
        one.refresh()
    with pytest.raises(MetadataTooNew):
        one.change([Put("s", "a", b"2")])
    assert "newer Penstock" in one.trouble
    assert one.get("s", "a") is not None


def test_a_topic_that_is_made_anew_is_read_anew(kafka_server: KafkaServer, topic: str) -> None:
    """Its records are gone, watchers hear of it, and versions go on."""
    clients = Clients(KafkaOptions(kafka_server.brokers, reach_s=HANG_S))
    gone = threading.Event()

    def watch(changes: Sequence[RecordChange]) -> None:
        if changes[0].value is None:
            gone.set()

    with closing(KafkaMetadata(clients, topic=topic)) as one:
        for number in range(5):
            last = one.change([Put("s", "a", b"%d" % number)]).result(HANG_S)
        one.watch("s", watch)
        admin = clients.admin()
        admin.delete_topics([topic])[topic].result(HANG_S)
        with closing(KafkaMetadata(clients, topic=topic)) as other:
            other.change([Put("t", "b", b"")]).result(HANG_S)
            assert gone.wait(HANG_S)
            one.refresh().result(HANG_S)
            assert one.list("s") == [] and len(one.list("t")) == 1
            assert one.change([Put("s", "a", b"")]).result(HANG_S) > last
