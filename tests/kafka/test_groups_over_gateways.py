"""Members of one group at two gateways: those of FlyMQ share partitions, those of Fujin share messages, and
a gateway that goes hands over what it had."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kit.http_caller import with_key
from kit.limits import HANG_S
from kit.live_server import LiveServer, ServerProcess
from kit.outside_servers import KafkaServer

from penstock.client.errors import ClientError, Refused
from penstock.client.flymq.client import FlyMQClient
from penstock.client.flymq.records import FetchedBatch
from penstock.client.fujin import FujinClient, QuicTrust, Subscription
from penstock.client.settings import ClientSettings

PARTITIONS = 4
KEY = "dev-key"
# The shortest that Kafka allows by default: so late it gives up a gateway that was killed.
SESSION = '{ "session.timeout.ms" = "6000" }'


def settings_of(server: KafkaServer, *more: tuple[str, str]) -> dict[str, str]:
    chosen = {"server.engine": "kafka", "kafka.bootstrap": server.brokers, "kafka.client": SESSION}
    return {**chosen, **dict(more)}


@pytest.fixture(scope="module")
def work(kafka_server: KafkaServer) -> str:
    """The topic that Fujin's readers share."""
    return made(kafka_server, f"work-{uuid.uuid4().hex[:8]}")


@pytest.fixture(scope="module")
def gateways(
    kafka_server: KafkaServer, work: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveServer, LiveServer]]:
    routes = f'{{ work = {{ topic = "{work}", group = "{work}", start = "earliest" }} }}'
    settings = settings_of(kafka_server, ("fujin.routes", routes))
    data = tmp_path_factory.mktemp("gateways")
    with LiveServer(data / "1", settings) as one, LiveServer(data / "2", settings) as other:
        yield one, other


def made(server: KafkaServer, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": server.brokers, "log_level": 0})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(HANG_S)
    return name


@pytest.fixture
def topic(kafka_server: KafkaServer, gateways: tuple[LiveServer, LiveServer]) -> str:
    """Known to both gateways."""
    name = made(kafka_server, f"topic-{uuid.uuid4().hex[:8]}")
    for gateway in gateways:
        until(lambda one=gateway: one.call(lambda: one.server.broker.topic(name)) is not None)  # type: ignore[misc]
    return name


def until(condition: Callable[[], bool]) -> None:
    """A condition that asks a server passes the time."""
    while not condition():
        continue


def produce(server: KafkaServer, topic: str, values: list[bytes]) -> None:
    """To all partitions in turn."""
    producer = Producer({"bootstrap.servers": server.brokers, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(HANG_S) == 0


def flymq(port: int, attempts: int = 3) -> FlyMQClient:
    settings = ClientSettings(timeout_s=HANG_S, attempts=attempts)
    return FlyMQClient(f"127.0.0.1:{port}", key=KEY, settings=settings)


# --- partitions -----------------------------------------------------------------------------------


async def until_told(
    client: FlyMQClient, topic: str, group: str, member: str, count: int
) -> list[int]:
    """What a member has, once it is so many partitions."""
    while True:
        told = await client.heartbeat(topic, group, member)
        if len(told.partitions) == count:
            return told.partitions


def test_members_at_two_gateways_share_partitions(
    gateways: tuple[LiveServer, LiveServer], topic: str
) -> None:
    group = f"group-{topic}"

    async def run() -> None:
        async with flymq(gateways[0].port()) as here, flymq(gateways[1].port()) as there:
            first = await here.join_group(topic, group)
            assert first.partitions == [0, 1, 2, 3]
            second = await there.join_group(topic, group)
            mine = await until_told(here, topic, group, first.member, 2)
            assert sorted(mine + second.partitions) == [0, 1, 2, 3]
            # Another one here shares what this gateway has.
            third = await here.join_group(topic, group)
            left = await until_told(here, topic, group, first.member, 1)
            assert sorted(left + third.partitions) == mine
            await commits(here, there, mine, second.partitions)
            shown(gateways[0], group, {first.member: left, third.member: third.partitions})
            assert (await there.describe_group(group, topic)).members == 1
            for member in (first, third):
                await here.leave_group(topic, group, member.member)
            assert await until_told(there, topic, group, second.member, 4) == [0, 1, 2, 3]
            await there.leave_group(topic, group, second.member)

    async def commits(
        here: FlyMQClient, there: FlyMQClient, mine: list[int], theirs: list[int]
    ) -> None:
        """Each through the gateway that holds the partition."""
        await here.commit(topic, mine[0], group, 0)
        await there.commit(topic, theirs[0], group, 0)
        with pytest.raises(Refused, match=f"does not hold partition {theirs[0]} of"):
            await here.commit(topic, theirs[0], group, 0)

    asyncio.run(run())


def shown(gateway: LiveServer, group: str, members: dict[str, list[int]]) -> None:
    """HTTP shows the members of this gateway, with what they read."""
    found = with_key(gateway)("GET", f"groups/{group}").json
    assert {one["member"]: one["partitions"] for one in found["members"]} == members
    read = sorted(number for numbers in members.values() for number in numbers)
    assert list(found["held"].values()) == [read]


class Consumers:
    """Members of a group that read and commit, and a log that grows for them."""

    def __init__(self, server: KafkaServer, topic: str) -> None:
        self._server = server
        self._topic = topic
        self._produced: set[bytes] = set()
        self._by_port: dict[int, set[bytes]] = {}
        self._more = asyncio.Event()

    def begin(self, port: int) -> "asyncio.Task[None]":
        self._by_port[port] = set()
        task = asyncio.create_task(self._read(port))
        task.add_done_callback(lambda _: self._more.set())
        return task

    async def _read(self, port: int) -> None:
        """Until its gateway is gone."""
        mine = self._by_port[port]
        async with flymq(port, attempts=0) as client:
            batches: AsyncGenerator[FetchedBatch, None] = client.consume_group(
                self._topic, self._topic, timeout_ms=3_000
            )
            async with aclosing(batches):
                async for batch in batches:
                    mine.update(message.value for message in batch.messages)
                    self._more.set()

    async def produce(self) -> None:
        first = len(self._produced)
        values = [b"%d" % number for number in range(first, first + 10 * PARTITIONS)]
        await asyncio.to_thread(produce, self._server, self._topic, values)
        self._produced.update(values)

    async def until_shared(self) -> None:
        """Until all of them get some of what is produced."""
        while not all(self._by_port.values()):
            await self.produce()

    async def until_all_is_read(self, reader: "asyncio.Task[None]") -> None:
        while not self._produced <= set().union(*self._by_port.values()):
            assert not reader.done(), reader.exception()
            self._more.clear()
            await self._more.wait()


@pytest.mark.parametrize("how", ["killed", pytest.param("closed", marks=pytest.mark.soak)])
def test_what_a_gateway_had_is_read_through_another(
    gateways: tuple[LiveServer, LiveServer],
    kafka_server: KafkaServer,
    topic: str,
    tmp_path: Path,
    how: str,
) -> None:
    """None of the records stays unread: those of before, and those that come meanwhile."""

    async def run(ports: list[int]) -> None:
        consumers = Consumers(kafka_server, topic)
        dying, living = (consumers.begin(port) for port in ports)
        await consumers.until_shared()
        end = gateway.kill if how == "killed" else gateway.stop
        await asyncio.gather(asyncio.to_thread(end), consumers.produce())
        await consumers.produce()
        await consumers.until_all_is_read(living)
        with pytest.raises(ClientError):
            await dying
        living.cancel()
        with suppress(asyncio.CancelledError):
            await living

    with ServerProcess(tmp_path / "data", settings_of(kafka_server)) as gateway:
        ports = [gateway.ports["tcp"], gateways[0].port()]
        asyncio.run(asyncio.wait_for(run(ports), HANG_S))


# --- messages -------------------------------------------------------------------------------------


def fujin(server: LiveServer) -> FujinClient:
    directory = server.server.config.server.data_directory
    trust = QuicTrust(ca=f"{directory}/quic-certificate.pem")
    settings = ClientSettings(timeout_s=HANG_S)
    return FujinClient(f"127.0.0.1:{server.port('udp')}", trust=trust, settings=settings)


def lanes(server: LiveServer, topic: str) -> list[int]:
    """The partitions that Fujin's readers of the group have at a gateway."""
    cursors = server.server.broker.cursors
    return server.call(lambda: cursors.held(topic).get(topic, []))


def test_readers_at_two_gateways_share_messages(
    gateways: tuple[LiveServer, LiveServer], kafka_server: KafkaServer, work: str
) -> None:
    values = {b"%d" % number for number in range(300)}
    acknowledged: list[bytes] = []

    async def read(subscription: Subscription, enough: int) -> None:
        async for batch in subscription.batches():
            outcomes = await subscription.ack(batch)
            assert all(one.failure is None for one in outcomes)
            acknowledged.extend(batch.values)
            if len(acknowledged) >= enough:
                return

    async def run() -> None:
        async with fujin(gateways[0]) as here, fujin(gateways[1]) as there:
            one = await here.subscribe("work", auto_commit=False)
            other = await there.subscribe("work", auto_commit=False)
            await asyncio.to_thread(until, lambda: len(lanes(gateways[0], work)) == 2)
            await asyncio.to_thread(until, lambda: len(lanes(gateways[1], work)) == 2)
            await asyncio.to_thread(produce, kafka_server, work, sorted(values))
            tasks = [asyncio.create_task(read(each, len(values))) for each in (one, other)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert sorted(acknowledged) == sorted(values)  # each once, at one of the two
            for task in tasks:
                task.cancel()
            # What a reader has in flight when it goes is delivered at the other gateway.
            await asyncio.to_thread(produce, kafka_server, work, [b"more"] * PARTITIONS)
            await anext(one.batches())
            await one.close()
            del acknowledged[:]
            await asyncio.wait_for(read(other, PARTITIONS), HANG_S)
            assert lanes(gateways[0], work) == []
            assert acknowledged == [b"more"] * PARTITIONS
            await other.close()

    asyncio.run(run())
