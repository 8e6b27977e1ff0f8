"""From the sockets of five protocols to the rows of every table, on a Spark cluster: first in peace, then
with kills.

Both tests are one story: the second goes on with the processes and the tables of the first.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.meeting import PROTOCOLS, Address, meeting
from spark.pipeline.demo_story import Story
from spark.pipeline.demo_world import World, demo_world
from spark.pipeline.whole_way import Comparison, alert, same

from penstock.demo.events import ALERTS, Amounts

LOAD = Amounts(orders=600, clicks=900, readings=900)
SHORT = Amounts(orders=200, clicks=200, readings=300)
# A kill of the soak comes so many seconds at most after a sink has begun to write: within its commit, or
# somewhere in what follows.
MOST_DELAY_S = 10.0
# Kills of each kind.
ROUNDS_VARIABLE, ROUNDS = "WHOLE_WAY_ROUNDS", "10"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with demo_world(tmp_path_factory.mktemp("whole-way"), seed=12) as made:
        yield made


def test_every_table_holds_what_was_sent(world: World) -> None:
    place = world.broker.place
    load = world.wave(LOAD)
    assert {event.protocol for event in load} == set(PROTOCOLS)

    async def work() -> dict[str, list[bytes]]:
        async with meeting(Address(place.tcp, place.udp, place.trust)) as clients:
            readers = {name: await client.open(ALERTS) for name, client in clients.items()}
            await world.send(load)
            await asyncio.to_thread(world.wait_until_complete)
            count = len(world.expected.alerts())
            return {name: await read(count) for name, read in readers.items()}

    read = asyncio.run(work())
    comparison = Comparison(world)
    comparison.everything()
    expected = Counter(comparison.expected_alerts())
    assert expected and set(read) == set(PROTOCOLS)
    for name, values in read.items():
        same(Counter(alert(value, None) for value in values), expected, f"alerts by {name}")


def test_and_so_they_do_after_kills_and_changes(world: World) -> None:
    """An executor, the broker and the driver die by SIGKILL, each while a sink is writing to its topic.
    On the way come records that no decoder takes, another version of a schema, and more partitions."""
    world.start_pipeline()
    story = Story(world, SHORT)
    story.send()
    story.kill("executor")
    story.evolve_schema()
    story.send(poisoned=True)
    story.kill("broker")
    story.more_partitions()
    story.send()
    story.kill("driver")
    story.send()
    world.wait_until_complete()
    Comparison(world).everything()
    assert story.kills == ["executor", "broker", "driver"]


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_and_so_they_do_after_very_many(tmp_path: Path, seed: int) -> None:
    """Ten kills of each, at any moment of the work, and the broker away for a minute."""
    with demo_world(tmp_path, seed) as world:
        world.start_pipeline()
        story = Story(world, SHORT)
        kills = ["executor", "broker", "driver"] * int(os.environ.get(ROUNDS_VARIABLE, ROUNDS))
        world.chance.shuffle(kills)
        changes = {1: story.evolve_schema, 3: story.more_partitions, 5: story.broker_away}
        for number, kill in enumerate(kills):
            if number in changes:
                changes[number]()
            story.send(poisoned=number % 5 == 2)
            story.kill(kill, delay_s=world.chance.random() * MOST_DELAY_S)
        story.send()
        world.wait_until_complete()
        Comparison(world).everything()
        assert story.kills == kills
