"""Three brokers of Kafka for tests of faults: every topic has three copies, two of which must have a
message before it is acknowledged. Each is a process on free ports, which can be killed, paused and started
again on its data. A second listener of each is behind a proxy, which can be cut: gateways that are told
`proxied_bootstrap` know no other way to it.
"""

import base64
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kit.limits import HANG_S
from kit.outside_servers import KAFKA_JARS, OutsideServer, free_port, program
from kit.tcp_proxy import TcpProxy

COPIES = 3
NEEDED_COPIES = 2
CLUSTER_ID = "cGVuc3RvY2sta2Fma2EtMw"
# How long the controller waits for a broker that is silent: as short as a busy machine allows.
SESSION_MS = 6_000


class Broker(OutsideServer):
    """One of several, each broker and controller. `voters`: all of them."""

    def __init__(self, directory: Path, number: int, voters: Callable[[], str]) -> None:
        super().__init__(directory)
        self.number = number
        self.controller_port = free_port()
        self.proxied_port = free_port()
        # The same over restarts of the broker, which names its port to clients.
        self.proxy = TcpProxy(lambda: self.proxied_port)
        self._voters = voters

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def properties(self) -> str:
        listeners = (
            f"PLAINTEXT://{self.address},PROXIED://127.0.0.1:{self.proxied_port},"
            f"CONTROLLER://127.0.0.1:{self.controller_port}"
        )
        advertised = f"PLAINTEXT://{self.address},PROXIED://127.0.0.1:{self.proxy.port}"
        copies = {
            f"{one}.replication.factor": COPIES
            for one in ("default", "offsets.topic", "transaction.state.log")
        }
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": self.number,
            "controller.quorum.voters": self._voters(),
            "listeners": listeners,
            "advertised.listeners": advertised,
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": f"{self.directory}/data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            **copies,
            "min.insync.replicas": NEEDED_COPIES,
            "offsets.topic.num.partitions": 2,
            "transaction.state.log.num.partitions": 2,
            "transaction.state.log.min.isr": NEEDED_COPIES,
            "share.coordinator.state.topic.replication.factor": COPIES,
            "share.coordinator.state.topic.num.partitions": 1,
            "broker.session.timeout.ms": SESSION_MS,
            "broker.heartbeat.interval.ms": SESSION_MS // 6,
            "replica.lag.time.max.ms": SESSION_MS,
            "controlled.shutdown.enable": "false",
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    @property
    def configuration(self) -> Path:
        return self.directory / "broker.properties"

    def java(self) -> list[str]:
        java = program("java", "openjdk-17-jre-headless")
        if not list(KAFKA_JARS.glob("libs/kafka_2.13-*.jar")):
            pytest.skip(f"the jars of Kafka are not in {KAFKA_JARS}: make servers")
        return [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{KAFKA_JARS}/libs/*"]

    def format(self) -> None:
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID]
        command = [*self.java(), *tool, "-c", str(self.configuration)]
        subprocess.run(command, check=True, capture_output=True)

    def format_like(self, other: "Broker") -> None:
        """A second start of Java would take seconds for two lines."""
        data = self.directory / "data"
        shutil.copytree(other.directory / "data", data)
        own = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        meta = data / "meta.properties"
        text = re.sub(r"node\.id=\d+", f"node.id={self.number}", meta.read_text())
        meta.write_text(re.sub(r"directory\.id=\S+", f"directory.id={own}", text))

    def command(self) -> list[str]:
        return [*self.java(), "kafka.Kafka", str(self.configuration)]

    def wait_until_ready(self) -> None:
        """It has no log: an answer shows it."""
        AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=HANG_S)


class KafkaCluster:
    """Three brokers, started together. `bootstrap` names all of them."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.brokers = {
            number: Broker(directory / str(number), number, self._voters) for number in (1, 2, 3)
        }

        self._proxies = ExitStack()

    def _voters(self) -> str:
        each = self.brokers.values()
        return ",".join(f"{one.number}@127.0.0.1:{one.controller_port}" for one in each)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def proxied_bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.proxy.port}" for broker in self.brokers.values())

    def each_proxy(self, fault: Callable[[TcpProxy], None]) -> None:
        for broker in self.brokers.values():
            fault(broker.proxy)

    def __enter__(self) -> Self:
        first, *others = self.brokers.values()
        for broker in self.brokers.values():
            self._proxies.enter_context(broker.proxy)
            broker.configuration.write_text(broker.properties())
        first.format()
        for broker in others:
            broker.format_like(first)
        try:
            self._each(Broker.start)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _each(self, work: Callable[[Broker], object]) -> None:
        """With all at once: one alone is no quorum and answers nobody."""
        errors: list[BaseException] = []

        def run(broker: Broker) -> None:
            try:
                work(broker)
            except BaseException as error:  # for the one who called
                errors.append(error)

        threads = [threading.Thread(target=run, args=[one]) for one in self.brokers.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self._proxies.close()

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def make_topics(self, names: Sequence[str]) -> None:
        """Of one partition each."""
        new = [NewTopic(name, 1, COPIES) for name in names]
        admin = self.admin()
        for made in admin.create_topics(new).values():
            made.result(HANG_S)

    def leader_of(self, topic: str) -> Broker:
        found = self.admin().list_topics(topic, timeout=HANG_S).topics[topic]
        return self.brokers[found.partitions[0].leader]

    def wait_until_whole(self, topic: str) -> None:
        """All copies of the topic have everything: another broker may be killed without loss."""
        admin = self.admin()
        while True:
            found = admin.list_topics(topic, timeout=HANG_S).topics[topic]
            if all(len(one.isrs) == COPIES for one in found.partitions.values()):
                return
