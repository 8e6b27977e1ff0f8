"""Delayed messages at two gateways, while the one that delivers them is paused, killed or stopped: what was
acknowledged comes, and comes once."""

import http.client
import json
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from faults.kafka.load import KEY, Worker, values_in
from kit.engine_page import OpenedPage, kafka_page
from kit.limits import HANG_S
from kit.live_server import ServerProcess
from kit.outside_servers import KafkaServer

from penstock.broker.delayed.hour import HOUR_MS
from penstock.broker.delayed.sharing import SHARES
from penstock.client.blocking import BlockingFace
from penstock.client.errors import Refused
from penstock.client.flymq.client import FlyMQClient
from penstock.client.settings import ClientSettings

# Acknowledged before and behind each fault, of each worker.
SOME = 200
ROUNDS = 5
# Of one request.
AT_ONCE = 10
MOST_MS = 400


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


class Delayer(Worker):
    """FlyMQ: messages with short delays; some of them it takes back."""

    def __init__(self, name: str, topic: str, ports: Sequence[int]) -> None:
        self._topic = topic
        self._random = random.Random(name)
        self.cancelled: set[bytes] = set()
        super().__init__(name, ports)

    def work(self, port: int) -> None:
        settings = ClientSettings(attempts=0, timeout_s=HANG_S)
        with FlyMQClient.blocking(f"127.0.0.1:{port}", key=KEY, settings=settings) as client:
            while not self.ending:
                numbers = [next(self.numbers) for _ in range(AT_ONCE)]
                values = [self.value(number) for number in numbers]
                delay_ms = self._random.randint(0, MOST_MS)
                stored = client.produce_delayed(self._topic, values, delay_ms)
                for number in numbers:
                    self.note(number)
                if delay_ms > MOST_MS // 2:
                    self._cancel(client, values[0], stored[0].offset)

    def _cancel(self, client: BlockingFace, value: bytes, number: int) -> None:
        try:
            client.cancel_delayed(number)
        except Refused:
            return  # it was delivered already
        self.cancelled.add(value)

    def value(self, number: int) -> bytes:
        return b"%s %d" % (self.name.encode(), number)

    def check(self, stored: Sequence[bytes]) -> None:
        mine = [value for value in stored if value.startswith(self.name.encode() + b" ")]
        assert len(mine) == len(set(mine)), f"{self.name}: delivered twice"
        assert not self.cancelled.intersection(mine), f"{self.name}: cancelled and delivered"


class Scene:
    """Two gateways, and a worker at each that stays with the one that serves it."""

    def __init__(self, kafka: KafkaServer, directory: Path, stack: ExitStack) -> None:
        self._kafka = kafka
        self._directory = directory
        self._stack = stack
        self.topic = f"delayed-{uuid.uuid4().hex[:8]}"
        self._page: OpenedPage = stack.enter_context(kafka_page(kafka.brokers))
        # By the ids that they have among themselves.
        self.gateways: dict[str, ServerProcess] = {}
        for _ in range(2):
            self.gateway()
        ports = self.ports()
        self.workers = [
            Delayer("there", self.topic, ports),
            Delayer("here", self.topic, ports[::-1]),
        ]
        self.go_on()

    def gateway(self) -> None:
        settings = {"server.engine": "kafka", "kafka.bootstrap": self._kafka.brokers}
        directory = self._directory / uuid.uuid4().hex[:8]
        made = self._stack.enter_context(ServerProcess(directory, settings))
        self.gateways[id_of(made.ports["http"])] = made

    def ports(self) -> list[int]:
        return [one.ports["tcp"] for one in self.gateways.values()]

    def go_on(self) -> None:
        for worker in self.workers:
            worker.wait_for_more(SOME)

    def holder(self) -> str:
        """The id of the gateway that delivers the messages of this hour."""
        number = int(time.time() * 1000) // HOUR_MS % SHARES
        found = self._page.engine.metadata.get("kafka-duties", f"delayed.{number}")
        assert found is not None
        return str(json.loads(found.value)["gateway"])

    def wait_for_another_holder(self, before: str) -> None:
        hangs_at_s = time.monotonic() + HANG_S
        while self.holder() == before:
            assert time.monotonic() < hangs_at_s, "nobody takes over"

    def check(self) -> None:
        for worker in self.workers:
            worker.stop()
        wanted = {one.value(at) for one in self.workers for at in one.acknowledged}
        wanted -= {value for one in self.workers for value in one.cancelled}
        hangs_at_s = time.monotonic() + HANG_S
        while missing := wanted - set(stored := values_in(self._kafka.brokers, self.topic)):
            assert time.monotonic() < hangs_at_s, f"{len(missing)} are lost: {sorted(missing)[:5]}"
        for worker in self.workers:
            worker.check(stored)


@pytest.fixture
def scene(kafka: KafkaServer, tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(kafka, tmp_path, stack)


def id_of(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    connection.request("GET", "/api/v1/cluster", headers={"Authorization": f"Bearer {KEY}"})
    found = json.loads(connection.getresponse().read())
    connection.close()
    return str(found["leader"])


def pause_the_holder(scene: Scene) -> None:
    """Until another one has gone on with its hour; then it comes back, in the middle of what it did."""
    holder = scene.holder()
    process = scene.gateways[holder].process
    os.kill(process.pid, signal.SIGSTOP)
    scene.wait_for_another_holder(holder)
    os.kill(process.pid, signal.SIGCONT)
    scene.go_on()


def kill_the_holder(scene: Scene) -> None:
    """The other one takes messages meanwhile. Then there is a new gateway."""
    holder = scene.holder()
    scene.gateways.pop(holder).kill()
    scene.go_on()
    scene.wait_for_another_holder(holder)
    begin_another(scene)


def stop_the_holder(scene: Scene) -> None:
    holder = scene.holder()
    assert scene.gateways.pop(holder).stop() == 0
    scene.wait_for_another_holder(holder)
    begin_another(scene)


def begin_another(scene: Scene) -> None:
    scene.gateway()
    for worker, ports in zip(scene.workers, (scene.ports(), scene.ports()[::-1]), strict=True):
        worker.use(ports)
    scene.go_on()


Fault = Callable[[Scene], None]


def test_each_comes_once(scene: Scene) -> None:
    pause_the_holder(scene)
    scene.check()


@pytest.mark.soak
@pytest.mark.parametrize("fault", [pause_the_holder, kill_the_holder, stop_the_holder])
def test_many_rounds(scene: Scene, fault: Fault) -> None:
    for _ in range(ROUNDS):
        fault(scene)
    scene.check()
