"""One server for the walk through the doors that have a login."""

from collections.abc import Iterator

import pytest
from conformance.rights.callers import Walk, walking
from kit.flight_client import FLIGHT


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with walking(tmp_path_factory.mktemp("rights"), **FLIGHT) as walk:
        yield walk
