"""A real Kafka for the tests of its engine: one process for all of them in a worker."""

import uuid
from collections.abc import Callable, Iterator

import pytest
from kit.engine_page import OpenedPage, kafka_page
from kit.outside_servers import KafkaServer

from penstock.log.embedded import EmbeddedEngine
from penstock.log.engine import Engine


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """Skips, by the name of what is missing, where there is no Java or no Kafka. Topics of tests have names
    of their own, and nobody stops it."""
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """The same page on each engine. Tests give their topics and groups names of their own."""
    if request.param == "embedded":
        data = str(tmp_path_factory.mktemp("embedded"))
        with OpenedPage(lambda post: EmbeddedEngine(data, post=post)) as page:
            yield page.engine
    else:
        with kafka_page(request.getfixturevalue("kafka_server").brokers) as page:
            yield page.engine


@pytest.fixture(scope="module")
def kafka_engine(kafka_server: KafkaServer) -> Iterator[Engine]:
    with kafka_page(kafka_server.brokers) as page:
        yield page.engine


@pytest.fixture(scope="module")
def other_engine(kafka_server: KafkaServer) -> Iterator[Engine]:
    """Another gateway of the same Kafka."""
    with kafka_page(kafka_server.brokers) as page:
        yield page.engine


@pytest.fixture
def named() -> Callable[[str], str]:
    """A name that no other test has."""
    suffix = uuid.uuid4().hex[:12]
    return lambda short: f"{short}-{suffix}"
