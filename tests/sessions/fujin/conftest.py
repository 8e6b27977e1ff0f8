"""A broker with the topic that the routes of the tests lead to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"))
    made.broker.create_topic(ANYBODY, "t", 1)
    made.settle()
    yield made
    made.close()
