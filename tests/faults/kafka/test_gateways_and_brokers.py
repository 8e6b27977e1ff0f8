"""Three brokers and two gateways under load: one of them is killed, paused or cut off, and nothing that was
acknowledged is lost, doubled or out of order."""

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Self

import pytest
from faults.kafka.load import KEY, Publisher, Transactor, Worker, values_in, values_through
from kit.kafka_cluster import KafkaCluster
from kit.limits import HANG_S
from kit.live_server import ServerProcess
from kit.tcp_proxy import TcpProxy

# Acknowledged before and behind each fault, of each publisher.
SOME = 300
ROUNDS = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


class Scene:
    """Two gateways, of which the first reaches Kafka by the proxies alone; publishers that begin at each
    and go to the other one when it fails, and a transactor."""

    def __init__(self, cluster: KafkaCluster, directory: Path) -> None:
        self.cluster = cluster
        self._directory = directory
        self._stack = ExitStack()
        self.workers: list[Worker] = []
        suffix = uuid.uuid4().hex[:8]
        self.topic, self.first, self.second = (f"{name}-{suffix}" for name in ("log", "a", "b"))

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _begin(self) -> None:
        self.cluster.make_topics([self.topic, self.first, self.second])
        self.gateways = [
            self.gateway(self.cluster.proxied_bootstrap),
            self.gateway(self.cluster.bootstrap),
        ]
        ports = [one.ports["tcp"] for one in self.gateways]
        there, here = ports, ports[::-1]
        self.publishers = [
            Publisher("there", self.topic, there),
            Publisher("here", self.topic, here),
        ]
        self.transactor = Transactor("together", (self.first, self.second), here)
        self.workers = [*self.publishers, self.transactor]
        self.go_on()

    def gateway(self, bootstrap: str) -> ServerProcess:
        directory = self._directory / uuid.uuid4().hex[:8]
        settings = {"server.engine": "kafka", "kafka.bootstrap": bootstrap}
        return self._stack.enter_context(ServerProcess(directory, settings))

    def go_on(self) -> None:
        """Everybody gets on with the work."""
        for publisher in self.publishers:
            publisher.wait_for_more(SOME)
        self.transactor.wait_for_more(2)

    def check(self) -> None:
        for worker in self.workers:
            worker.stop()
        alive = [one for one in self.gateways if one.process.poll() is None]
        by_topic = {}
        for topic in (self.topic, self.first, self.second):
            stored = by_topic[topic] = values_in(self.cluster.bootstrap, topic)
            for gateway in alive:
                assert values_through(gateway.ports["tcp"], topic, len(stored)) == stored
        for publisher in self.publishers:
            publisher.check(by_topic[self.topic])
        self.transactor.check(by_topic[self.first], by_topic[self.second])

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()
        self._stack.close()
        for worker in self.workers:
            worker.stop()


@pytest.fixture
def scene(cluster: KafkaCluster, tmp_path: Path) -> Iterator[Scene]:
    with Scene(cluster, tmp_path) as scene:
        yield scene


def kill_the_leader(scene: Scene) -> None:
    broker = scene.cluster.leader_of(scene.topic)
    broker.kill()
    scene.go_on()
    broker.start()
    for topic in (scene.topic, scene.first, scene.second):
        scene.cluster.wait_until_whole(topic)


def kill_another_broker(scene: Scene) -> None:
    leader = scene.cluster.leader_of(scene.topic)
    broker = next(one for one in scene.cluster.brokers.values() if one is not leader)
    broker.kill()
    scene.go_on()
    broker.start()
    for topic in (scene.topic, scene.first, scene.second):
        scene.cluster.wait_until_whole(topic)


def kill_a_gateway(scene: Scene) -> None:
    """Its clients go to the other one."""
    scene.gateways[0].kill()
    scene.go_on()


def pause_a_gateway(scene: Scene) -> None:
    process = scene.gateways[0].process
    os.kill(process.pid, signal.SIGSTOP)
    scene.publishers[1].wait_for_more(SOME)
    os.kill(process.pid, signal.SIGCONT)
    scene.go_on()


def cut_off_a_gateway(scene: Scene) -> None:
    """No connection to Kafka is left, and none comes about."""
    _away(scene, TcpProxy.cut)


def pull_the_cable_of_a_gateway(scene: Scene) -> None:
    """No connection ends, and nothing goes through them."""
    _away(scene, TcpProxy.hold)


def _away(scene: Scene, fault: Callable[[TcpProxy], None]) -> None:
    """It says that it is in trouble, the other one goes on, and when all is well it comes back."""
    alone, other = scene.gateways
    scene.cluster.each_proxy(fault)
    wait_for_readiness(alone, 503)
    assert readiness(other)[0] == 200
    scene.publishers[1].wait_for_more(SOME)
    scene.transactor.wait_for_more(2)
    assert status_of(alone)["trouble"]
    assert status_of(other)["trouble"] == ""
    scene.cluster.each_proxy(TcpProxy.heal)
    wait_for_readiness(alone, 200)
    scene.go_on()


def readiness(gateway: ServerProcess) -> tuple[int, bytes]:
    return asked(gateway, "/readyz")


def wait_for_readiness(gateway: ServerProcess, status: int) -> None:
    hangs_at_s = time.monotonic() + HANG_S
    while (answer := readiness(gateway))[0] != status:
        assert time.monotonic() < hangs_at_s, answer


def status_of(gateway: ServerProcess) -> dict[str, object]:
    found: dict[str, object] = json.loads(asked(gateway, "/api/v1/cluster")[1])
    return found


def asked(gateway: ServerProcess, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", gateway.ports["http"], timeout=HANG_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


Fault = Callable[[Scene], None]


@pytest.mark.parametrize("fault", [kill_the_leader, cut_off_a_gateway, kill_a_gateway])
def test_nothing_acknowledged_is_lost(scene: Scene, fault: Fault) -> None:
    fault(scene)
    scene.check()


@pytest.mark.soak
@pytest.mark.parametrize(
    "fault",
    [
        kill_the_leader,
        kill_another_broker,
        pause_a_gateway,
        cut_off_a_gateway,
        pull_the_cable_of_a_gateway,
    ],
)
def test_many_rounds(scene: Scene, fault: Fault) -> None:
    for _ in range(ROUNDS):
        fault(scene)
    scene.check()
