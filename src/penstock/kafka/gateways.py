"""The gateways of one Kafka: each says again and again that it is there, and knows the others by that.

A beat is a message of the compacted topic `_penstock.gateways` under the id of the gateway; one that
stops takes its own away. Nothing else depends on beats: who has decided or fenced something, Kafka knows.

    key     id of the gateway
    value   JSON: address for clients, address of Arrow Flight, version, start in microseconds, which
            loopback interface is its own (addresses there mean another server on another machine), and
            the names of the duties that it takes shares of
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.kafka.clients import Clients
from penstock.kafka.cluster import Cluster, KafkaRefused

GATEWAYS_TOPIC: Final = "_penstock.gateways"
BEAT_S: Final = 2.0
# Five beats: a gateway that was paused, or whose machine is very busy, is not given up at once.
SILENT_S: Final = 10.0
# One look for beats of others.
FOLLOW_S: Final = 0.25
TAKEN_AT_ONCE: Final = 1_000
_CONFIGURATION: Final = {
    "cleanup.policy": "compact",
    "segment.ms": str(3600 * 1000),
    "min.cleanable.dirty.ratio": "0.5",
}

logger = logging.getLogger(__name__)


class Beat(msgspec.Struct, frozen=True, gc=False):
    address: str
    flight: str
    version: str
    started_us: int
    loopback: str = ""
    duties: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gateway:
    id: str
    beat: Beat


def own_loopback() -> str:
    """The same for all processes that reach each other over the loopback interface: those of one boot of
    one machine, and of one container of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:  # no Linux
        return socket.gethostname()


class Gateways:
    """Thread-safe. `announce` begins the beats of this one."""

    def __init__(
        self,
        clients: Clients,
        cluster: Cluster,
        gateway_id: str,
        clock_s: Callable[[], float] = time.monotonic,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self.id = gateway_id
        self._clients = clients
        self._cluster = cluster
        self._clock_s = clock_s
        self._time_s = time_s
        self._own: Beat | None = None
        self._seen: dict[str, tuple[Beat, float]] = {}
        self._online: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Called after each look, once all beats that were there at the start are known.
        self.listened: Callable[[], None] = lambda: None
        self._loaded = False

    def announce(self, beat: Beat) -> None:
        self._own = msgspec.structs.replace(beat, loopback=own_loopback())
        if self._thread is None:
            self._ensure_topic()
            self._thread = threading.Thread(
                target=self._run, name="penstock-kafka-gateways", daemon=True
            )
            self._thread.start()

    def _ensure_topic(self) -> None:
        try:
            self._cluster.create(GATEWAYS_TOPIC, 1, _CONFIGURATION)
        except KafkaRefused as error:
            if error.code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    @property
    def own_address(self) -> str:
        return "" if self._own is None else self._own.address

    def online(self) -> Sequence[Gateway]:
        """All that were heard lately, by id; this one is always among them."""
        since_s = self._clock_s() - SILENT_S
        with self._lock:
            found = {name: beat for name, (beat, at_s) in self._seen.items() if at_s >= since_s}
        if self._own is not None:
            found[self.id] = self._own
        return [Gateway(name, beat) for name, beat in sorted(found.items())]

    def taking(self, duty: str) -> frozenset[str]:
        """Ids of those that were heard lately and take shares of a duty."""
        since_s = self._clock_s() - SILENT_S
        with self._lock:
            return frozenset(
                name
                for name, (beat, at_s) in self._seen.items()
                if at_s >= since_s and duty in beat.duties
            )

    # --- beats ------------------------------------------------------------------------------------

    def _run(self) -> None:
        producer = self._clients.producer(acks="1", message_timeout_ms=int(SILENT_S * 1000))
        consumer = self._clients.consumer(
            auto_offset_reset="earliest", enable_partition_eof=True, fetch_wait_max_ms=250
        )
        consumer.assign([TopicPartition(GATEWAYS_TOPIC, 0, 0)])
        due_s = 0.0
        while not self._stop.is_set():
            if self._clock_s() >= due_s and self._own is not None:
                due_s = self._clock_s() + BEAT_S
                self._send(producer.produce, msgspec.json.encode(self._own))
            producer.poll(0)
            self._listen(consumer)
        self._send(producer.produce, None)
        producer.flush(BEAT_S)
        consumer.close()

    def _send(self, produce: "Callable[..., None]", value: bytes | None) -> None:
        try:
            produce(GATEWAYS_TOPIC, value, self.id, partition=0)
        except (BufferError, KafkaException) as error:
            logger.debug("a beat could not be sent: %s", error)

    def _listen(self, consumer: Consumer) -> None:
        try:
            for message in consumer.consume(TAKEN_AT_ONCE, FOLLOW_S):
                error = message.error()
                if error is None:
                    self._hear(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._loaded = True
        except KafkaException as error:
            logger.debug("beats of others could not be read: %s", error)
            self._stop.wait(FOLLOW_S)
        since_s = self._clock_s() - SILENT_S
        with self._lock:
            now = frozenset(one for one, (_, at_s) in self._seen.items() if at_s >= since_s)
        if now != self._online:
            self._tell(now)
        if self._loaded:
            self.listened()

    def _tell(self, now: frozenset[str]) -> None:
        for name in sorted((now ^ self._online) - {self.id}):
            logger.info("gateway %s is %s", name, "there" if name in now else "gone")
        self._online = now

    def _hear(self, message: Message) -> None:
        name = (message.key() or b"").decode("utf-8", "replace")
        value = message.value()
        with self._lock:
            if value is None:
                self._seen.pop(name, None)
                return
            # An old beat, read at the start, is as old as Kafka says.
            age_s = max(self._time_s() - message.timestamp()[1] / 1000, 0.0)
            if age_s > SILENT_S:
                self._seen.pop(name, None)
                return
            try:
                beat = msgspec.json.decode(value, type=Beat)
            except msgspec.DecodeError:
                return  # of another version
            self._seen[name] = (beat, self._clock_s())

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
