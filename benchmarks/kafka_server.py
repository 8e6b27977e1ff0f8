"""One Kafka on free ports of the loopback interface, and Spark's own source for it: for comparisons.

The jars are those of Maven's registry, fetched once into the cache of this machine by Maven itself. Where
they cannot be had, `Missing` says why, and the comparison is left out.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from benchmarks.broker_servers import Process

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
# Where tools/bootstrap.py puts the broker, for the tests of connectors.
BROKER_JARS: Final = CACHE / "kafka" / "libs"
SOURCE: Final = CACHE / "spark-kafka"
# The newest Spark whose Kafka source is in the registry. The token provider of that version is not, so
# that --packages fails: the four are fetched one by one, without what they ask for.
PYSPARK: Final = "4.2.0"
SOURCE_JARS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
# As Kafka's own start script has it.
HEAP: Final = "-Xmx1g"
START_TIME_S: Final = 60.0

_POM: Final = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId>
  <artifactId>spark-kafka-for-benchmarks</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY: Final = """
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""


class Missing(Exception):
    """What cannot be had here, in one line."""


def source_jars() -> list[Path]:
    """Raises Missing."""
    libs = SOURCE / "libs"
    wanted = [libs / f"{name}-{version}.jar" for _, name, version in SOURCE_JARS]
    if all(path.is_file() for path in wanted):
        return wanted
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("no Maven to fetch Spark's Kafka source; on Debian: apt-get install maven")
    SOURCE.mkdir(parents=True, exist_ok=True)
    pom = SOURCE / "pom.xml"
    listed = "".join(_DEPENDENCY.format(*one) for one in SOURCE_JARS)
    pom.write_text(_POM.format(dependencies=listed))
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    _run([*command, f"-DoutputDirectory={libs}"], "Maven cannot fetch Spark's Kafka source")
    return wanted


def other_python() -> str:
    """A Python with that PySpark, and all other packages of this one. Raises Missing."""
    place = SOURCE / f"pyspark-{PYSPARK}"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        shutil.rmtree(place, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(place)], "no environment can be made")
        pip = [str(python), "-m", "pip", "install", "-q", f"pyspark=={PYSPARK}"]
        _run(pip, f"PySpark {PYSPARK} cannot be had")
        (found,) = place.glob("lib/python*/site-packages")
        # Behind its own packages, so that its PySpark is the one that counts.
        (mine,) = [one for one in sys.path if one.endswith("site-packages")]
        (found / "others.pth").write_text(f"{mine}\n")
        (place / "ready").touch()
    return str(python)


def _run(command: Sequence[str], failed: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        last = ((done.stdout + done.stderr).strip().splitlines() or ["no reason given"])[-1]
        raise Missing(f"{failed}: {last}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def kafka(directory: Path) -> Iterator[Process]:
    """Listens as `kafka`. Raises Missing."""
    if not list(BROKER_JARS.glob("kafka_2.13-*.jar")):
        raise Missing(f"the jars of Kafka are not in {BROKER_JARS}: make servers")
    directory.mkdir(parents=True)
    port, controller = _free_port(), _free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(directory / "data"),
        "num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    path = directory / "broker.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = [shutil.which("java") or "java", HEAP, "-cp", f"{BROKER_JARS}/*"]
    tool = ["kafka.tools.StorageTool", "format", "-t", "cGVuc3RvY2sta2Fma2EtMQ", "-c", str(path)]
    _run([*java, *tool], "Kafka's storage cannot be made")
    with (directory / "log").open("w") as log:
        child = subprocess.Popen([*java, "kafka.Kafka", str(path)], stdout=log, stderr=log)
    try:
        _wait_for(port, child)
        yield Process(child.pid, {"kafka": port})
    finally:
        child.terminate()
        child.wait()


def _wait_for(port: int, child: "subprocess.Popen[bytes]") -> None:
    ends_s = time.monotonic() + START_TIME_S
    while time.monotonic() < ends_s and child.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise Missing("Kafka did not start")
