"""Work for gateways while they and Kafka suffer: publishers and transactions that note what was
acknowledged, and the rules that the log must keep to afterwards."""

import itertools
import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, TopicPartition
from conformance.blipmq.peer import NACK, BlipMQPeer, message, ping, pong
from kit.limits import HANG_S

from penstock.client.errors import ClientError
from penstock.client.flymq.client import FlyMQClient
from penstock.client.rustlog import RustLogClient
from penstock.client.settings import ClientSettings

# Sent before an answer is awaited. A PING asks for it: its PONG says that all before it is stored but what
# was refused.
WINDOW = 20
PING_ID = 1 << 60
# Between two attempts while no gateway takes connections.
PAUSE_S = 0.05
KEY = "dev-key"


class Worker(threading.Thread):
    """Does one thing after the other through the first of its gateways that serves it, until `stop`."""

    def __init__(self, name: str, ports: Sequence[int]) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged: list[int] = []
        self.numbers = itertools.count()
        self._ports = itertools.cycle(ports)
        self._more = threading.Condition()
        self._ending = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self.work(next(self._ports))
            except (OSError, AssertionError, ClientError):
                self._ending.wait(PAUSE_S)

    def work(self, port: int) -> None:
        """Over one connection, until it breaks or `ending`."""
        raise NotImplementedError

    def use(self, ports: Sequence[int]) -> None:
        """These from the next connection on."""
        self._ports = itertools.cycle(ports)

    @property
    def ending(self) -> bool:
        return self._ending.is_set()

    def note(self, number: int) -> None:
        with self._more:
            self.acknowledged.append(number)
            self._more.notify_all()

    def wait_for_more(self, count: int) -> None:
        """Until so many more than now are acknowledged."""
        with self._more:
            least = len(self.acknowledged) + count
            enough = self._more.wait_for(lambda: len(self.acknowledged) >= least, HANG_S)
        assert enough, f"{self.name} has {len(self.acknowledged)} and hangs"

    def end(self) -> None:
        """After what it is at."""
        self._ending.set()

    def stop(self) -> None:
        self.end()
        self.join(HANG_S)
        assert not self.is_alive(), f"{self.name} does not end"


class Publisher(Worker):
    """BlipMQ, QoS 1. Nothing is sent twice: what it sent after an acknowledgement stands behind it."""

    def __init__(self, name: str, topic: str, ports: Sequence[int]) -> None:
        self._topic = topic
        super().__init__(name, ports)

    def work(self, port: int) -> None:
        with BlipMQPeer(port).login() as peer:
            while not self.ending:
                numbers = list(itertools.islice(self.numbers, WINDOW))
                frames = [self._frame(number) for number in numbers]
                peer.send(b"".join(frames) + ping(PING_ID))
                refused: set[int] = set()
                while (answer := peer.frame()) != pong(PING_ID):
                    assert answer[4] == NACK, answer.hex(" ")
                    refused.add(int.from_bytes(answer[5:13], "big"))
                for number in numbers:
                    if number not in refused:
                        self.note(number)

    def _frame(self, number: int) -> bytes:
        return message(number, self._topic, b"%s %d" % (self.name.encode(), number))

    def check(self, stored: Sequence[bytes]) -> None:
        """Everything acknowledged is there, once, in the order in which it was sent."""
        mine = [value for value in stored if value.startswith(self.name.encode() + b" ")]
        numbers = [int(value.split()[1]) for value in mine]
        acknowledged = set(self.acknowledged)
        assert not acknowledged - set(numbers), f"{self.name}: acknowledged and lost"
        kept = [number for number in numbers if number in acknowledged]
        assert len(kept) == len(acknowledged), f"{self.name}: acknowledged once and stored twice"
        assert kept == sorted(kept), f"{self.name}: out of order"


class Transactor(Worker):
    """FlyMQ: transactions over two topics, three records here and two there."""

    def __init__(self, name: str, topics: tuple[str, str], ports: Sequence[int]) -> None:
        self._topics = topics
        super().__init__(name, ports)

    def work(self, port: int) -> None:
        settings = ClientSettings(attempts=0, timeout_s=HANG_S)
        with FlyMQClient.blocking(f"127.0.0.1:{port}", key=KEY, settings=settings) as client:
            while not self.ending:
                number = next(self.numbers)
                transaction = client.begin_transaction()
                for topic, count in zip(self._topics, (3, 2), strict=True):
                    values = [b"%s %d" % (self.name.encode(), number)] * count
                    client.stage(transaction, topic, values)
                client.commit_transaction(transaction)
                self.note(number)

    def check(self, first: Sequence[bytes], second: Sequence[bytes]) -> None:
        """Whole or not at all, and once; whole where the commit was acknowledged."""
        for number in range(next(self.numbers)):
            value = b"%s %d" % (self.name.encode(), number)
            found = first.count(value), second.count(value)
            assert found in ((3, 2), (0, 0)), f"{self.name}: transaction {number} is torn: {found}"
            whole = found == (3, 2)
            assert whole or number not in self.acknowledged, f"transaction {number} is lost"


def values_through(port: int, topic: str, count: int) -> list[bytes]:
    """All that a gateway shows, read by RustLog. A gateway hears of what another one stored a moment later
    (`FRESH_S` of kafka/ends.py), so an empty answer is the end only behind the `count` that Kafka has."""
    found: list[bytes] = []
    offset = 0
    hangs_at_s = time.monotonic() + HANG_S
    with RustLogClient.blocking(f"127.0.0.1:{port}") as client:
        while True:
            batch = client.fetch(topic, 0, offset)
            found += batch.values
            at_end = batch.next_offset == offset
            if at_end and (len(found) >= count or time.monotonic() > hangs_at_s):
                return found
            offset = batch.next_offset


def values_in(bootstrap: str, topic: str) -> list[bytes]:
    """All that Kafka itself shows to a reader of what is committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while True:
        one = consumer.poll(HANG_S)
        assert one is not None, "Kafka hangs"
        error = one.error()
        if error is None:
            value = one.value()
            assert isinstance(value, bytes)
            found.append(value)
        elif error.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return found
