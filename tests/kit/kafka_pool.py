"""Kafka for servers of the tests: a few real ones, each of which stands for a data directory.

With `pytest --engine kafka`, every server of kit/live_server.py has its log here. A server that starts
again on the same data directory finds the same Kafka with its content. A Kafka that nobody uses is emptied
before it is given to another data directory: first those whose tests are over. All end with the session.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from kit.limits import HANG_S
from kit.outside_servers import KafkaServer

# In one worker: each takes 300 MB.
MOST_SERVERS: Final = 3
# Kafka's own topics, which are made once.
OWN_PREFIX: Final = "__"


class PooledKafka:
    """`users`: servers that run on it now. `kept`: whether its content may still be asked for."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self.data: Path | None = None
        self.users = 0
        self.kept = False

    def empty(self) -> None:
        """All topics but Kafka's own, and all groups, are gone when this returns."""
        admin = AdminClient({"bootstrap.servers": self.server.brokers, "log_level": 0})
        groups = admin.list_consumer_groups().result(HANG_S)
        names = [group.group_id for group in groups.valid]
        if names:
            for deleted in admin.delete_consumer_groups(names).values():
                deleted.result(HANG_S)
        found = admin.list_topics(timeout=HANG_S).topics
        topics = [name for name in found if not name.startswith(OWN_PREFIX)]
        if topics:
            for gone in admin.delete_topics(topics, operation_timeout=HANG_S).values():
                gone.result(HANG_S)


class KafkaPool:
    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        self._all: list[PooledKafka] = []
        self._numbers = 0
        # Longest unused first.
        self._by_data: dict[Path, PooledKafka] = {}

    def take(self, data: Path) -> PooledKafka:
        """Until `give_back`. Skips the test where Kafka cannot be had."""
        place = data.resolve()
        found = self._by_data.pop(place, None)
        if found is None:
            found = self._free() or self._start() or self._idle()
            if found.data is not None:
                self._by_data.pop(found.data, None)
                found.empty()
            found.data = place
        self._by_data[place] = found
        found.users += 1
        found.kept = True
        return found

    def give_back(self, kafka: PooledKafka) -> None:
        kafka.users -= 1

    def end(self, below: Path) -> None:
        """No server will start again on a data directory there."""
        for one in self._all:
            if not one.users and one.data is not None and one.data.is_relative_to(below.resolve()):
                one.kept = False

    def _free(self) -> PooledKafka | None:
        free = [one for one in self._all if not one.users and not one.kept]
        return free[0] if free else None

    def _start(self) -> PooledKafka | None:
        if len(self._all) == MOST_SERVERS:
            return None
        server = self._started()
        self._all.append(PooledKafka(server))
        return self._all[-1]

    def _started(self) -> KafkaServer:
        self._numbers += 1
        try:
            return KafkaServer(self._directory / str(self._numbers)).start()
        except AssertionError:
            # Another process took one of its ports between the choice and the start.
            self._numbers += 1
            return KafkaServer(self._directory / str(self._numbers)).start()

    def _idle(self) -> PooledKafka:
        idle = [one for one in self._by_data.values() if not one.users]
        assert idle, f"more than {MOST_SERVERS} servers with data of their own run at once"
        return idle[0]

    def close(self) -> None:
        for one in self._all:
            one.server.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class Choice:
    """Which engine the servers of the tests have."""

    pool: KafkaPool | None = None


def use_kafka() -> None:
    Choice.pool = KafkaPool()


def end_kafka() -> None:
    if Choice.pool is not None:
        Choice.pool.close()
        Choice.pool = None


def end_data(below: Path) -> None:
    """The tests that use data directories there are over."""
    if Choice.pool is not None:
        Choice.pool.end(below)


class EngineFlags:
    """What a server on this data directory is told about its engine, until `end`."""

    def __init__(self, data: Path) -> None:
        self._pool = Choice.pool
        self._kafka = None if self._pool is None else self._pool.take(data)

    def flags(self) -> dict[str, str]:
        if self._kafka is None:
            return {}
        return {"server.engine": "kafka", "kafka.bootstrap": self._kafka.server.brokers}

    def end(self) -> None:
        if self._pool is not None and self._kafka is not None:
            self._pool.give_back(self._kafka)
            self._kafka = None
