"""All five protocols on one log: what is published with each is read with each, 25 pairs.

Text, bytes of every value, an empty message where there is one, a megabyte, names beyond ASCII, and 10,000
messages in order. Each publisher writes once, and the readers of all protocols read it at the same time.
"""

import asyncio
from collections.abc import Iterator

import pytest
from client.peer import run
from e2e.meeting import PROTOCOLS, Address, meeting
from kit.live_server import LiveServer
from kit.running_server import Running

from penstock.client.errors import Refused
from penstock.client.felix import QuicTrust
from penstock.client.flymq import FlyMQClient
from penstock.client.fujin import FujinClient
from penstock.client.rustlog import RustLogClient

SETTINGS = {
    "felix.auto_create": "true",
    "fujin.auto_create": "true",
    "rustlog.auto_create": "true",
    # Readers wait while the publisher writes, without a login on their streams.
    "limits.login_time": "600 s",
}
COUNT = 10_000
EMPTY = b""
CONTENT = [
    "grüße, 世界".encode(),
    bytes(range(256)),
    EMPTY,
    bytes(range(256)) * 4096,
    *(b"%d" % number for number in range(COUNT)),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("five"), SETTINGS) as running:
        yield running


def address_of(server: LiveServer) -> Address:
    return Address(
        f"127.0.0.1:{server.port()}",
        f"127.0.0.1:{server.port('udp')}",
        QuicTrust(ca=f"{server.server.config.server.data_directory}/quic-certificate.pem"),
    )


def without_empty(values: list[bytes]) -> list[bytes]:
    return [value for value in values if value]


class Exchanges:
    """What every reader got of each publisher; made when a pair asks for it."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._found: dict[str, dict[str, list[bytes]]] = {}

    def of(self, publisher: str) -> dict[str, list[bytes]]:
        if publisher not in self._found:
            self._found[publisher] = run(self._exchange(publisher))
        return self._found[publisher]

    async def _exchange(self, publisher: str) -> dict[str, list[bytes]]:
        topic = f"ténant/größe/主题-{publisher}"
        sent = without_empty(CONTENT) if publisher == "fujin" else CONTENT
        async with meeting(address_of(self._server)) as clients:
            await clients["flymq"].client.create_topic(topic, 1)
            readers = {name: await client.open(topic) for name, client in clients.items()}
            counts = {name: len(sent) for name in readers} | {"fujin": len(without_empty(sent))}
            reading = [read(counts[name]) for name, read in readers.items()]
            publishing = clients[publisher].publish(topic, sent)
            found = await asyncio.gather(*reading, publishing)
        return dict(zip(readers, found, strict=False))


@pytest.fixture(scope="module")
def exchanges(server: LiveServer) -> Exchanges:
    return Exchanges(server)


@pytest.mark.parametrize("reader", PROTOCOLS)
@pytest.mark.parametrize("publisher", PROTOCOLS)
def test_published_with_one_read_with_the_other(
    exchanges: Exchanges, publisher: str, reader: str
) -> None:
    """Fujin cannot write an empty message, and its readers are not sent one."""
    found = exchanges.of(publisher)[reader]
    expected = without_empty(CONTENT) if "fujin" in (publisher, reader) else CONTENT
    assert len(found) == len(expected)
    assert found == expected


def test_an_empty_record_is_skipped_and_counted_for_fujin(
    exchanges: Exchanges, server: LiveServer
) -> None:
    """The readers above have skipped one of each of the four that can write it."""
    for publisher in PROTOCOLS:
        exchanges.of(publisher)

    async def work() -> int:
        page = await Running(server.server).call("GET", "/metrics", key=None)
        lines = page.body.decode().splitlines()
        (line,) = [one for one in lines if "empty record" in one and "fujin" in one]
        return int(float(line.rsplit(" ", 1)[1]))

    assert run(work()) == len(PROTOCOLS) - 1


def test_keys_and_headers_are_kept_where_both_ends_have_them(server: LiveServer) -> None:
    """Keys of FlyMQ and HTTP, headers of Fujin and HTTP."""
    http = Running(server.server)
    topic = "kept"

    async def work() -> None:
        address = address_of(server)
        async with (
            FlyMQClient(address.tcp) as flymq,
            FujinClient(address.udp, trust=address.trust) as fujin,
            fujin.writer() as writer,
        ):
            await flymq.create_topic(topic, 1)
            await flymq.produce(topic, b"flymq", key="schlüssel".encode())
            await writer.write(topic, b"fujin", headers=[("näme", b"\x00\xff"), ("empty", b"")])
            record = {"key": "a2V5", "value": "aHR0cA==", "headers": [["h", "dmFsdWU="]]}
            path = f"/api/v1/topics/{topic}/records"
            assert (await http.call("POST", path, {"records": [record]})).status == 200
            read = (await flymq.fetch(topic, 0, 0)).messages
            assert [(one.key, one.value) for one in read] == [
                ("schlüssel".encode(), b"flymq"),
                (b"", b"fujin"),
                (b"key", b"http"),
            ]
            page = (await http.call("GET", f"{path}?from=earliest")).json["records"]
            assert [one["headers"] for one in page] == [
                [],
                [["näme", "AP8="], ["empty", ""]],
                [["h", "dmFsdWU="]],
            ]
            assert [one["key"] for one in page] == ["c2NobMO8c3NlbA==", None, "a2V5"]

    run(work())


def test_a_record_that_no_frame_of_the_reader_holds_does_not_stop_it(server: LiveServer) -> None:
    """RustLog's replies hold the least: the error names the offset and the next one, which is read. The
    frames of the others hold it; those of Felix as JSON by more than its document has as a default."""
    topic = "t/n/large"
    large, after = b"\xff" * (12 * 1024 * 1024), b"after"

    async def work() -> None:
        async with meeting(address_of(server)) as clients:
            await clients["flymq"].client.create_topic(topic, 1)
            names = [name for name in PROTOCOLS if name != "rustlog"]
            readers = {name: await clients[name].open(topic) for name in names}
            await clients["fujin"].publish(topic, [large, after])
            for name, read in readers.items():
                assert await read(2) == [large, after], name
            rustlog: RustLogClient = clients["rustlog"].client
            with pytest.raises(Refused, match=r"too large for a reply: offset 0 .* fetch from 1"):
                await rustlog.fetch(topic, 0, 0)
            assert (await rustlog.fetch(topic, 0, 1)).values == [after]

    run(work())
