"""A broker for each test, closed behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"))
    yield made
    made.close()
