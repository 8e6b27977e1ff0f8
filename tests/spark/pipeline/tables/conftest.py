"""Environments with the PySpark that Delta Lake and Iceberg are there for. They stay in the cache of this
machine, and so do the packages that Spark resolves."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.environments import Environment, make_environment, requirements
from kit.live_server import LiveServer
from spark.conftest import FLIGHT, KEY

from penstock.client.flight import FlightClient, connect

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "lakes"
# The newest PySpark for which each is there.
WANTED = {"delta": "4.2.0", "iceberg": "4.1.4"}


@pytest.fixture(scope="module", params=list(WANTED), ids=lambda name: f"{name}-on-{WANTED[name]}")
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def environment(table_format: str) -> Environment:
    """Made once. Where the packages cannot be had, the tests are left out and say so."""
    wanted = requirements("schemas", "spark", table_format)
    wanted["pyspark"] = f"pyspark[connect,pipelines]=={WANTED[table_format]}"
    key = hashlib.sha256("\n".join(wanted.values()).encode()).hexdigest()[:12]
    found = Environment(CACHE / f"{table_format}-{key}")
    ready = found.directory / "ready"
    if not ready.exists():
        shutil.rmtree(found.directory, ignore_errors=True)
        found.directory.parent.mkdir(parents=True, exist_ok=True)
        make_environment(found.directory)
        try:
            found.install(*wanted.values(), without=["pyspark", "py4j"])
        except AssertionError as error:
            pytest.skip(f"PySpark {WANTED[table_format]} cannot be had: {str(error)[-200:]}")
        ready.touch()
    return found


@pytest.fixture(scope="module")
def broker(table_format: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {**FLIGHT, "listeners.http": "127.0.0.1:0", "audit.enabled": "false"}
    directory = tmp_path_factory.mktemp(f"{table_format}-broker") / "data"
    with LiveServer(directory, settings) as running:
        yield running


@pytest.fixture(scope="module")
def sender(broker: LiveServer) -> Iterator[FlightClient]:
    with connect(f"127.0.0.1:{broker.port('flight')}", KEY) as client:
        yield client
