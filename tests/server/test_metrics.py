"""The metrics page of a real server after real work, and the small parts it is made of."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from kit.echo_server import hang_up, run
from kit.limits import HANG_S
from kit.running_server import Running, running_server
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.access.access import Principal
from penstock.broker.records import Records
from penstock.log.engine import WALKED_AT_ONCE
from penstock.log.partitions.ends import CLEAN_STOP_FILE
from penstock.log.statistics import Counters
from penstock.server.metrics import PARTITION_GAUGES, PIECE_SAMPLES, LoopLag, PartitionPage
from penstock.server.net.counters import Histogram
from penstock.wire.blipmq import frames as blipmq
from penstock.wire.rustlog import frames as rustlog
from penstock.wire.rustlog.binary import encode_request

ADMIN = Principal("test", "admin")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def with_server(data: Path, test: Callable[[Running], Awaitable[None]], **settings: str) -> None:
    async def body() -> None:
        # Without the audit trail: only what a test does is counted.
        quiet = {"audit__enabled": "false", **settings}
        async with running_server(data, **quiet) as running:
            await test(running)

    run("uvloop", body)


async def scrape(running: Running, path: str = "/metrics") -> Samples:
    answer = await running.call("GET", path, key=None)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"penstock_{name}", tuple(sorted(labels.items()))]


def test_work_shows_in_the_metrics(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port("tcp"))
        writer.write(encode_request(rustlog.CreateTopic("t", 1)))
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
        request = encode_request(rustlog.Produce("t", 0, [b"a", b"b", b"c"]))
        writer.write(request)
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
        found = await scrape(running)
        assert value(found, "connections", protocol="rustlog") == 1
        assert value(found, "connections", protocol="undecided") == 0
        assert value(found, "connections_opened_total", protocol="rustlog") == 1
        assert value(found, "frames_received_total", protocol="rustlog") == 2
        assert value(found, "received_bytes_total", protocol="rustlog") >= len(request)
        assert value(found, "sent_bytes_total", protocol="rustlog") > 0
        assert value(found, "appended_records_total") == 3
        assert value(found, "flushes_total") == 1
        assert value(found, "flush_duration_seconds_count") == 1
        assert value(found, "flush_records_sum") == 3
        assert value(found, "log_end_offset") == 3
        assert value(found, "log_start_offset") == 0
        assert value(found, "topics") == value(found, "partitions") == 1
        await hang_up(writer)

    with_server(tmp_path, test)


def test_refusals_show_with_their_reason(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port("tcp"))
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        assert await reader.read() == b""
        await hang_up(writer)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port("blipmq"))
        writer.write(blipmq.encode_hello(1) + blipmq.encode_auth(2, "wrong"))
        await reader.readexactly(13)
        await reader.readexactly(4)
        other = await asyncio.open_connection("127.0.0.1", running.port("blipmq"))
        assert await other[0].read() == b""
        found = await scrape(running)
        assert value(found, "closed_connections_total", reason="unknown_protocol") == 1
        assert value(found, "refused_connections_total", reason="connections") == 1
        assert value(found, "failed_logins_total") == 1
        assert value(found, "errors_total", protocol="blipmq", kind="401") == 1
        for one in (writer, other[1]):
            await hang_up(one)

    with_server(tmp_path, test, limits__connections="1")


def test_limits_stand_beside_what_they_limit(tmp_path: Path) -> None:
    """Users, rules, schemas, transactions, delayed messages: each is counted, and its limit refuses."""
    settings = {
        "limits.users": "1",
        "limits.topic_rules": "1",
        "limits.schemas": "1",
        "limits.transactions_per_key": "1",
        "limits.staged_bytes_per_key": "1 MiB",
        "limits.delayed_messages": "1",
    }

    async def test(running: Running) -> None:
        async def twice(method: str, path: str, bodies: Sequence[object]) -> None:
            first, second = [await running.call(method, f"/api/v1/{path}", body) for body in bodies]
            assert first.status < 300, first.body
            assert (second.status, second.json["error"]["name"]) == (409, "LIMIT_REACHED")
            assert "limits." in second.json["error"]["text"]

        definition = {"definition": "{}"}
        delayed = {"records": [{"value": ""}], "delay_ms": 3_600_000}
        await twice("POST", "schemas", [{"name": one, **definition} for one in ("a", "b")])
        await twice("POST", "topics/later/records", [delayed, delayed])
        await twice("POST", "transactions", [None, None])
        (begun,) = (await running.call("GET", "/api/v1/transactions")).json["transactions"]
        few, many = [
            {"topic": "t", "records": [{"value": "x" * size}] * 3, "encoding": "text"}
            for size in (100, 400_000)
        ]
        await twice("POST", f"transactions/{begun['id']}/records", [few, many])
        users = [{"name": one, "password": "pw", "roles": ["admin"]} for one in ("al", "bo")]
        await twice("POST", "users", users)
        for name, status in (("a", 200), ("b", 409)):
            answer = await running.call("PUT", f"/api/v1/acls/{name}", {"public": True})
            assert answer.status == status
        samples = await scrape(running)
        for name in ("users", "topic_rules", "schema_versions", "transactions_open"):
            assert value(samples, name) == value(samples, f"{name}_limit") == 1
        assert value(samples, "delayed_messages") == value(samples, "delayed_messages_limit") == 1
        assert value(samples, "transactions_staged_bytes_limit") == 1024**2
        assert 300 <= value(samples, "transactions_staged_bytes") <= 1024
        assert value(samples, "group_members") == 0

    with_server(tmp_path, test, **settings)


def test_every_name_follows_the_rules(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        await running.call("POST", "/api/v1/topics", {"name": "t"})
        for path in ("/metrics", "/metrics/partitions"):
            text = (await running.call("GET", path)).body.decode()
            families = list(text_string_to_metric_families(text))
            assert families
            for family in families:
                assert family.name.startswith("penstock_")
                assert family.documentation
                for sample in family.samples:
                    assert (family.type == "counter") == sample.name.endswith("_total")
                    assert not sample.name.endswith(("_ms", "_us", "_kb"))

    with_server(tmp_path, test)


def test_topics_are_labels_on_a_page_of_their_own(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        await running.call("POST", "/api/v1/topics", {"name": 'a"b\\', "partitions": 2})
        await running.server.broker.publish(ADMIN, 'a"b\\', 1, Records([b"x", b"y"]))
        reset = {"topic": 'a"b\\', "to": 0, "partition": 1}
        await running.call("POST", "/api/v1/groups/g/reset", reset)
        found = await scrape(running, "/metrics/partitions")
        labels = {"topic": 'a"b\\', "partition": "1"}
        assert value(found, "partition_log_start_offset", **labels) == 0
        assert value(found, "partition_log_end_offset", **labels) == 2
        assert value(found, "partition_stopped", **labels) == 0
        assert value(found, "group_lag_records", group="g", **labels) == 2
        assert b'topic="' not in (await running.call("GET", "/metrics")).body

    with_server(tmp_path, test)


def test_the_page_of_partitions_comes_in_pieces(tmp_path: Path) -> None:
    """However many there are. All samples of a name stand together, and a topic that goes meanwhile is
    left out."""

    async def test(running: Running) -> None:
        broker, count = running.server.broker, 2 * PIECE_SAMPLES + 100
        await running.call("POST", "/api/v1/topics", {"name": "wide", "partitions": count})
        await running.call("POST", "/api/v1/topics", {"name": "zone"})
        await broker.publish(ADMIN, "wide", 7, Records([b"x"]))
        for number in range(WALKED_AT_ONCE + 1):
            await broker.reset_offset(ADMIN, f"group {number}", "wide", 7, 0)
        pieces = PartitionPage(running.server.engine).pieces()
        text = next(pieces) + next(pieces)  # the names of both are looked up by now
        await broker.delete_topic(ADMIN, "zone")
        rest = list(pieces)
        assert len(rest) > 10
        assert max(piece.count(b"\n") for piece in rest) <= PIECE_SAMPLES
        whole = (text + b"".join(rest)).decode()
        assert whole == (await running.call("GET", "/metrics/partitions")).body.decode()
        assert whole.count("# HELP") == whole.count("# TYPE") == len(PARTITION_GAUGES) + 1
        families = {one.name: one.samples for one in text_string_to_metric_families(whole)}
        for name, _ in PARTITION_GAUGES:
            assert {sample.labels["topic"] for sample in families[name]} == {"wide"}
            assert len(families[name]) == count
        assert len(families["penstock_group_lag_records"]) == WALKED_AT_ONCE + 1

    with_server(tmp_path, test)


def test_totals_never_go_down(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        await running.call("POST", "/api/v1/topics", {"name": "t"})
        await running.server.broker.publish(ADMIN, "t", 0, Records([b"x"] * 5))
        assert value(await scrape(running), "appended_records_total") == 5
        await running.call("DELETE", "/api/v1/topics/t")
        found = await scrape(running)
        assert value(found, "appended_records_total") == 5
        assert value(found, "partitions") == 0
        await running.call("POST", "/api/v1/topics", {"name": "t"})
        await running.server.broker.publish(ADMIN, "t", 0, Records([b"x"]))
        assert value(await scrape(running), "appended_records_total") == 6

    with_server(tmp_path, test)


def test_a_cut_tail_shows(tmp_path: Path) -> None:
    async def fill(running: Running) -> None:
        await running.call("POST", "/api/v1/topics", {"name": "t"})
        await running.server.broker.publish(ADMIN, "t", 0, Records([b"x"]))

    async def look(running: Running) -> None:
        found = await scrape(running)
        assert value(found, "recovery_cut_bytes_total") == 11
        assert value(found, "damages") == 0
        assert value(found, "log_end_offset") == 1

    with_server(tmp_path, fill)
    (log,) = tmp_path.glob("topics/*/0/*.log")
    with log.open("ab") as file:
        file.write(b"torn record")
    (tmp_path / CLEAN_STOP_FILE).unlink()  # a torn tail is what a crash leaves
    with_server(tmp_path, look)


def test_a_histogram_counts_at_or_below_its_bounds() -> None:
    histogram = Histogram((1, 2.5))
    for seen in (0, 1, 1.5, 2.5, 9):
        histogram.observe(seen)
    assert histogram.snapshot() == ([("1", 2), ("2.5", 4), ("+Inf", 5)], 14)


def test_a_loop_that_hangs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loop whose clock jumps: the timer is late by the jump."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        histogram = Histogram((0.5, 5.0))
        lag = LoopLag(loop, histogram)
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + 3.0)
        try:
            async with asyncio.timeout(HANG_S):
                while histogram.snapshot()[0][-1][1] < 1:
                    await asyncio.sleep(0)
        finally:
            lag.stop()
        assert histogram.snapshot()[0][:2] == [("0.5", 0), ("5.0", 1)]

    run("asyncio", test)


def test_counters_of_the_log_are_all_shown() -> None:
    from dataclasses import fields

    from penstock.server.metrics import _LOG_COUNTERS

    assert {*_LOG_COUNTERS, "damages"} == {field.name for field in fields(Counters)}
