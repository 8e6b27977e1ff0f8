"""A broker with the stream and the cache of the tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench
from sessions.felix.peer import TOPIC

from penstock.broker.options import BrokerOptions


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"), BrokerOptions(tenants=("t/n/c",)))
    made.broker.create_topic(ANYBODY, TOPIC, 1)
    made.settle()
    yield made
    made.close()
