"""What a client is told only when Kafka has it: rows of BlipMQ that tests/conformance proves with a slow
disk of the embedded engine, here with a Kafka that is paused."""

from pathlib import Path

from conformance.blipmq.conftest import PATIENT
from conformance.blipmq.peer import BlipMQPeer, message, ping, poll, pong, until
from kit.live_server import LiveServer
from kit.outside_servers import KafkaServer


def test_a_pong_and_a_delivery_wait_until_kafka_has_the_message(
    tmp_path: Path, kafka_server: KafkaServer
) -> None:
    """Rows 27 and 38."""
    place = {"server.engine": "kafka", "kafka.bootstrap": kafka_server.brokers}
    with (
        LiveServer(tmp_path / "data", {**PATIENT, **place}) as server,
        BlipMQPeer(server.port("blipmq")) as peer,
        BlipMQPeer(server.port("blipmq")) as other,
    ):
        peer.login()
        subscription = other.login().subscribe("waiting")
        peer.send(message(3, "waiting", b"first"))
        assert other.poll(subscription) == message(1, "waiting", b"first")
        kafka_server.pause()
        try:
            peer.send(message(4, "waiting", b"second") + ping(5))
            engine = server.server.engine
            until(lambda: server.call(lambda: engine.undurable_bytes) > 0, "the publish")
            # A poll of an empty queue is forgotten: nobody has got the message.
            other.ask(poll(6, subscription) + ping(7), pong(7))
            assert server.call(lambda: engine.undurable_bytes) > 0
        finally:
            kafka_server.resume()
        peer.expect(pong(5))
        assert other.poll(subscription) == message(2, "waiting", b"second")
