"""Felix and Fujin while the server is killed, again and again on one data directory, with requests under
way.

What was acknowledged is there afterwards, each message once and in order; what was not is there or not. A
transaction of Fujin is there as a whole or not at all. What a group of Fujin has acknowledged does not come
again, and everything else does.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from client.peer import run
from kit.live_server import ServerProcess

from penstock.client.errors import ClientError
from penstock.client.felix import FelixClient, QuicTrust
from penstock.client.flymq import FlyMQClient
from penstock.client.fujin import FujinClient
from penstock.client.settings import ClientSettings

SEED = 12
ANYBODY = QuicTrust(insecure=True)
ONCE = ClientSettings(attempts=0)
FELIX, FUJIN, TRANSACTED = "kills/by/felix", "kills-fujin", "kills-transactions"
SETTINGS = {
    "felix.auto_create": "true",
    "fujin.auto_create": "true",
    "fujin.routes": '{ team = { topic = "kills-fujin", group = "team", start = "earliest" } }',
    "fujin.retry_backoff": "1 ms",
}
# A life ends when each client has so many answers, up to this many.
MOST_ANSWERS = 12
LIVES = 3
SOAK_LIVES = 100


@dataclass(slots=True)
class History:
    """What the clients of all lives know."""

    # By topic, in order: what was sent, and whether it was acknowledged.
    sent: dict[str, list[bytes]] = field(default_factory=lambda: {FELIX: [], FUJIN: []})
    confirmed: dict[str, set[bytes]] = field(default_factory=lambda: {FELIX: set(), FUJIN: set()})
    # Transactions by name: the values, and the state: open, committing, committed or rolled back.
    transactions: dict[str, tuple[list[bytes], str]] = field(default_factory=dict)
    # Of the group: what the server has confirmed as acknowledged, and what it was asked to.
    settled: set[bytes] = field(default_factory=set)
    settling: set[bytes] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)


async def publish_felix(address: str, history: History, life: int) -> None:
    async with FelixClient(address, trust=ANYBODY, settings=ONCE) as client:
        for number in range(1_000_000):
            values = [b"%d/%d/%d" % (life, number, n) for n in range(1 + number % 7)]
            history.sent[FELIX] += values
            await client.publish_many(FELIX, values)
            history.confirmed[FELIX].update(values)
            history.done["felix"] += 1


async def write_fujin(address: str, history: History, life: int) -> None:
    async with FujinClient(address, trust=ANYBODY, settings=ONCE) as client:
        writer = client.writer()
        for number in range(1_000_000):
            values = [b"%d/%d/%d" % (life, number, n) for n in range(1 + number % 7)]
            history.sent[FUJIN] += values
            await writer.write_many(FUJIN, values)
            history.confirmed[FUJIN].update(values)
            history.done["fujin"] += 1


async def transact(address: str, history: History, life: int, choices: random.Random) -> None:
    async with FujinClient(address, trust=ANYBODY, settings=ONCE) as client:
        writer = client.writer("transactions")
        for number in range(1_000_000):
            name = f"{life}.{number}"
            values = [f"{name}/{n}".encode() for n in range(choices.choice([1, 3, 20]))]
            history.transactions[name] = values, "open"
            await writer.begin()
            await writer.write_many(TRANSACTED, values)
            if choices.random() < 0.2:
                history.transactions[name] = values, "rolled back"
                await writer.rollback()
                continue
            history.transactions[name] = values, "committing"
            await writer.commit()
            history.transactions[name] = values, "committed"
            history.done["transactions"] += 1


async def consume(address: str, history: History) -> None:
    """What the group gets is never something that it has acknowledged, with an answer."""
    async with FujinClient(address, trust=ANYBODY, settings=ONCE) as client:
        consumer = await client.consumer("team", auto_commit=False)
        while True:
            batch = await consumer.fetch(5)
            assert not history.settled.intersection(batch.values), "acknowledged, and comes again"
            history.settling.update(batch.values)
            outcomes = await consumer.ack(batch)
            assert all(one.failure is None for one in outcomes)
            history.settled.update(batch.values)
            history.done["acks"] += bool(batch.values)


async def live_and_die(
    process: ServerProcess, history: History, life: int, choices: random.Random
) -> None:
    address = f"127.0.0.1:{process.ports['udp']}"
    before, least = history.done.copy(), choices.randrange(1, MOST_ANSWERS)
    clients = [
        asyncio.ensure_future(publish_felix(address, history, life)),
        asyncio.ensure_future(write_fujin(address, history, life)),
        asyncio.ensure_future(transact(address, history, life, choices)),
        asyncio.ensure_future(consume(address, history)),
    ]
    kinds = ("felix", "fujin", "transactions", "acks")
    while any(history.done[kind] - before[kind] < least for kind in kinds):
        done, _ = await asyncio.wait(clients, timeout=0.005, return_when="FIRST_COMPLETED")
        for one in done:
            raise AssertionError("a client ended while the server lives") from one.exception()
    process.kill()
    for ended in await asyncio.gather(*clients, return_exceptions=True):
        assert isinstance(ended, ClientError), ended


async def stored(client: FlyMQClient, topic: str) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        batch = await client.fetch(topic, 0, offset)
        if not batch.values:
            return found
        found += batch.values
        offset = batch.next_offset


async def resolve(process: ServerProcess, history: History) -> None:
    """Before anything new is sent."""
    async with FlyMQClient(f"127.0.0.1:{process.ports['tcp']}") as client:
        for topic in (FELIX, FUJIN, TRANSACTED):
            await client.create_topic(topic, 1)
        for topic in (FELIX, FUJIN):
            found = await stored(client, topic)
            assert len(set(found)) == len(found), f"{topic}: doubled"
            assert history.confirmed[topic] <= set(found), f"{topic}: acknowledged and lost"
            known = set(found)
            assert found == [one for one in history.sent[topic] if one in known], f"{topic}: order"
        shown = Counter(await stored(client, TRANSACTED))
    assert max(shown.values(), default=0) <= 1, "a message of a transaction is there twice"
    for name, (values, state) in history.transactions.items():
        there = sum(shown[value] for value in values)
        expected = {"committed": {len(values)}, "committing": {0, len(values)}}.get(state, {0})
        assert there in expected, f"{name} is {state}, and {there} of {len(values)} are there"


@pytest.mark.parametrize("lives", [LIVES, pytest.param(SOAK_LIVES, marks=pytest.mark.soak)])
def test_what_was_acknowledged_outlives_every_kill(tmp_path: Path, lives: int) -> None:
    choices = random.Random(SEED)
    history = History()
    for life in range(lives):
        with ServerProcess(tmp_path, SETTINGS) as process:
            run(resolve(process, history))
            run(live_and_die(process, history, life, choices))
    with ServerProcess(tmp_path, SETTINGS) as process:
        run(resolve(process, history))
        run(rest_of_the_group(process, history))


async def rest_of_the_group(process: ServerProcess, history: History) -> None:
    """The group gets everything that it has not acknowledged; what an answer was lost for, perhaps."""
    async with (
        FujinClient(f"127.0.0.1:{process.ports['udp']}", trust=ANYBODY) as client,
        FlyMQClient(f"127.0.0.1:{process.ports['tcp']}") as flymq,
    ):
        left = set(await stored(flymq, FUJIN)) - history.settled
        consumer = await client.consumer("team", auto_commit=False)
        while left - history.settling or history.settling & left:
            batch = await consumer.fetch(1_000)
            if not batch.values:
                break
            assert not history.settled.intersection(batch.values)
            history.settled.update(batch.values)
            await consumer.ack(batch)
            left -= set(batch.values)
        assert left <= history.settling, "the group missed something"
