"""The HTTP listener against a real server: health, readiness, the API, its errors and its limits."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kit.echo_server import make_certificate, run
from kit.overriding import Overriding
from kit.running_server import Running, running_server

from penstock.broker.access.access import Principal
from penstock.broker.port import DESCRIBED_AT_ONCE
from penstock.broker.records import Records
from penstock.log.errors import UnknownTopic
from penstock.server.http import app
from penstock.server.http.calls import MAX_BODY_BYTES

ADMIN = Principal("test", "admin")


def with_server(data: Path, test: Callable[[Running], Awaitable[None]], **settings: str) -> None:
    async def body() -> None:
        async with running_server(data, **settings) as running:
            await test(running)

    run("uvloop", body)


async def append(running: Running, topic: str, *values: bytes, partition: int = 0) -> None:
    await running.server.broker.publish(ADMIN, topic, partition, Records(list(values)))


def error_of(answer: Any) -> tuple[int, str]:
    return answer.status, answer.json["error"]["name"]


def test_health_and_readiness(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        assert (await running.call("GET", "/healthz", key=None)).json == {"status": "ok"}
        ready = await running.call("GET", "/readyz", key=None)
        assert (ready.status, ready.json) == (200, {"status": "ready"})
        running.server.http.state = "draining"
        ready = await running.call("GET", "/readyz", key=None)
        assert (ready.status, ready.json) == (503, {"status": "draining"})
        assert (await running.call("GET", "/healthz", key=None)).status == 200
        assert error_of(await running.call("POST", "/api/v1/topics", {"name": "a"})) == (
            503,
            "SHUTTING_DOWN",
        )
        assert (await running.call("GET", "/api/v1/topics")).status == 200

    with_server(tmp_path, test)


def test_a_starting_server_is_alive_but_not_ready(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        running.server.http.state = "starting"
        running.server.http.api = None
        assert (await running.call("GET", "/readyz")).status == 503
        assert error_of(await running.call("GET", "/api/v1/topics")) == (503, "OVERLOADED")

    with_server(tmp_path, test)


def test_the_life_of_a_topic(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        made = await running.call(
            "POST",
            "/api/v1/topics",
            {"name": "a/b ü", "partitions": 2, "settings": {"retention_ms": 5000}},
        )
        assert made.status == 201
        assert made.json["name"] == "a/b ü"
        assert made.json["partitions"] == 2
        assert made.json["settings"]["retention_ms"] == 5000
        await append(running, "a/b ü", b"x", b"y", partition=1)
        path = "/api/v1/topics/a%2Fb%20%C3%BC"
        found = (await running.call("GET", path)).json
        assert found["records"] == 2
        assert found["bytes"] > 0
        details = found["partition_details"]
        assert [(one["partition"], one["earliest"], one["latest"]) for one in details] == [
            (0, 0, 0),
            (1, 0, 2),
        ]
        assert [(one["stopped"], one["damages"]) for one in details] == [(None, [])] * 2
        changes = {"settings": {"durability": "none"}, "partitions": 3}
        changed = await running.call("PATCH", path, changes)
        assert (changed.status, changed.json["partitions"]) == (200, 3)
        assert changed.json["settings"]["durability"] == "none"
        listed = (await running.call("GET", "/api/v1/topics")).json["topics"]
        assert [topic["name"] for topic in listed] == ["a/b ü"]
        assert "partition_details" not in listed[0]
        assert (await running.call("DELETE", path)).status == 204
        assert error_of(await running.call("GET", path)) == (404, "UNKNOWN_TOPIC")

    with_server(tmp_path, test)


def test_a_new_topic_has_the_configured_defaults(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        made = (await running.call("POST", "/api/v1/topics", {"name": "a"})).json
        assert made["partitions"] == 3
        assert made["settings"]["durability"] == "interval"

    with_server(
        tmp_path, test, topic_defaults__partitions="3", topic_defaults__durability="interval"
    )


def test_records_from_a_place_on(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        await running.call("POST", "/api/v1/topics", {"name": "t"})
        await append(running, "t", *[b"%d" % n for n in range(10)])

        async def read(query: str) -> tuple[list[bytes], int, int]:
            answer = (await running.call("GET", f"/api/v1/topics/t/records?{query}")).json
            values = [base64.b64decode(record["value"]) for record in answer["records"]]
            return values, answer["next_offset"], answer["end_offset"]

        everything = [b"%d" % n for n in range(10)]
        assert await read("") == (everything, 10, 10)
        assert await read("from=latest") == ([], 10, 10)
        assert await read("offset=7") == (everything[7:], 10, 10)
        assert await read("offset=2&limit=3") == (everything[2:5], 5, 10)
        assert await read("max_bytes=4") == (everything[:4], 4, 10)
        assert await read("time_us=0") == (everything, 10, 10)
        assert await read(f"time_us={2**62}") == ([], 10, 10)
        answer = (await running.call("GET", "/api/v1/topics/t/records?limit=1")).json
        (record,) = answer["records"]
        assert record["timestamp_us"] > 0
        assert (record["partition"], record["offset"], record["key"]) == (0, 0, None)
        assert record["headers"] == []

    with_server(tmp_path, test)


@pytest.mark.parametrize(
    ("query", "status", "name"),
    [
        ("offset=99", 416, "OFFSET_OUT_OF_RANGE"),
        ("partition=7", 404, "UNKNOWN_PARTITION"),
        ("offset=x", 400, "INVALID_REQUEST"),
        ("offset=-1", 400, "INVALID_REQUEST"),
        ("limit=99999999", 400, "INVALID_REQUEST"),
        ("max_bytes=99999999999999999999999", 400, "INVALID_REQUEST"),
        ("from=middle", 400, "INVALID_REQUEST"),
        ("from=latest&offset=1", 400, "INVALID_REQUEST"),
        ("ofset=1", 400, "INVALID_REQUEST"),
        ("offset=1&offset=2", 400, "INVALID_REQUEST"),
    ],
)
def test_reads_that_make_no_sense(tmp_path: Path, query: str, status: int, name: str) -> None:
    async def test(running: Running) -> None:
        await running.call("POST", "/api/v1/topics", {"name": "t"})
        answer = await running.call("GET", f"/api/v1/topics/t/records?{query}")
        assert error_of(answer) == (status, name)

    with_server(tmp_path, test)


def test_groups_and_their_reset(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        assert (await running.call("GET", "/api/v1/groups")).json == {"groups": []}
        assert error_of(await running.call("GET", "/api/v1/groups/g")) == (404, "UNKNOWN_GROUP")
        await running.call("POST", "/api/v1/topics", {"name": "t", "partitions": 2})
        await append(running, "t", b"a", b"b", b"c")

        async def reset(to: object, partition: int | None = None) -> list[tuple[int, int, int]]:
            body = {"topic": "t", "to": to, "partition": partition}
            answer = await running.call("POST", "/api/v1/groups/g/reset", body)
            assert answer.status == 200, answer.body
            offsets = answer.json["offsets"]
            return [(one["partition"], one["offset"], one["lag"]) for one in offsets]

        assert await reset("latest") == [(0, 3, 0), (1, 0, 0)]
        assert await reset("earliest", 0) == [(0, 0, 3), (1, 0, 0)]
        assert await reset(2, 0) == [(0, 2, 1), (1, 0, 0)]
        assert await reset({"time_us": 0}) == [(0, 0, 3), (1, 0, 0)]
        group: dict[str, Any] = {
            "name": "g",
            "offsets": [
                {"topic": "t", "partition": 0, "offset": 0, "latest": 3, "lag": 3},
                {"topic": "t", "partition": 1, "offset": 0, "latest": 0, "lag": 0},
            ],
        }
        group["committed_us"] = running.server.engine.group_updated_us("g")
        listed = {"groups": [{**group, "members": 0}]}
        assert (await running.call("GET", "/api/v1/groups")).json == listed
        offsets = [{**one, "member": None} for one in group["offsets"]]
        alone = {**group, "offsets": offsets, "members": [], "connections": {}, "held": {}}
        assert (await running.call("GET", "/api/v1/groups/g")).json == alone
        for body, expected in (
            ({"topic": "t", "to": 9}, (416, "OFFSET_OUT_OF_RANGE")),
            ({"topic": "t", "to": "now"}, (400, "INVALID_REQUEST")),
            ({"topic": "t", "to": 1, "partition": 5}, (404, "UNKNOWN_PARTITION")),
            ({"topic": "no", "to": 1}, (404, "UNKNOWN_TOPIC")),
        ):
            answer = await running.call("POST", "/api/v1/groups/g/reset", body)
            assert error_of(answer) == expected

    with_server(tmp_path, test)


def test_keys_and_what_they_allow(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        made = await running.call(
            "POST", "/api/v1/keys", {"name": "r", "role": "reader", "topics": ["a.*"]}
        )
        assert made.status == 201
        secret = made.json["key"]
        assert list(made.json.items()) == [
            ("name", "r"), ("role", "reader"), ("topics", ["a.*"]), ("key", secret),
        ]  # fmt: skip
        listed = await running.call("GET", "/api/v1/keys")
        assert [key["name"] for key in listed.json["keys"]] == ["r"]
        assert secret.encode() not in listed.body
        for name in ("a.x", "b.x"):
            await running.call("POST", "/api/v1/topics", {"name": name})
        topics = (await running.call("GET", "/api/v1/topics", key=secret)).json["topics"]
        assert [topic["name"] for topic in topics] == ["a.x"]
        for method, path, body in (
            ("GET", "/api/v1/topics/b.x", None),
            ("GET", "/api/v1/topics/b.x/records", None),
            ("POST", "/api/v1/topics", {"name": "a.y"}),
            ("PATCH", "/api/v1/topics/a.x", {"partitions": 2}),
            ("DELETE", "/api/v1/topics/a.x", None),
            ("POST", "/api/v1/groups/g/reset", {"topic": "a.x", "to": "latest"}),
            ("GET", "/api/v1/keys", None),
            ("POST", "/api/v1/keys", {"name": "mine"}),
            ("DELETE", "/api/v1/keys/r", None),
        ):
            answer = await running.call(method, path, body, key=secret)
            assert error_of(answer) == (403, "NOT_AUTHORIZED"), path
        again = await running.call("POST", "/api/v1/keys", {"name": "r"})
        assert error_of(again) == (409, "KEY_EXISTS")
        assert (await running.call("DELETE", "/api/v1/keys/r")).status == 204
        assert error_of(await running.call("DELETE", "/api/v1/keys/no")) == (404, "UNKNOWN_KEY")
        answer = await running.call("GET", "/api/v1/topics", key=secret)
        assert error_of(answer) == (401, "NOT_AUTHENTICATED")

    with_server(tmp_path, test)


@pytest.mark.parametrize("secret", ["plain", "clé à", "ключ", "\N{KEY}"])
def test_keys_are_utf8_in_the_header(tmp_path: Path, secret: str) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(f'[[keys]]\nname = "k"\nkey = "{secret}"\nrole = "admin"\n')

    async def body() -> None:
        async with running_server(tmp_path / "data", config) as running:
            sent = secret.encode().decode("latin-1")  # http.client writes Latin-1
            assert (await running.call("GET", "/api/v1/topics", key=sent)).status == 200
            for wrong in (sent + "\xe9", "\xff"):
                answer = await running.call("GET", "/api/v1/topics", key=wrong)
                assert error_of(answer) == (401, "NOT_AUTHENTICATED")

    run("uvloop", body)


@pytest.mark.parametrize("key", [None, "", "wrong"])
def test_no_key_no_answer(tmp_path: Path, key: str | None) -> None:
    async def test(running: Running) -> None:
        answer = await running.call("GET", "/api/v1/topics", key=key)
        assert error_of(answer) == (401, "NOT_AUTHENTICATED")
        assert answer.headers["www-authenticate"] == "Bearer"
        failed = 1 if key == "wrong" else 0
        assert running.server.hub.counters.failed_logins == failed

    with_server(tmp_path, test)


@pytest.mark.parametrize(
    ("method", "path", "raw", "status"),
    [
        ("GET", "/api/v1/nothing", None, 404),
        ("GET", "/api/v1/topics/a/b", None, 404),
        ("GET", "/api/v1/topics/%ff", None, 400),
        ("GET", "/api/v1/topics?x=1", None, 400),
        ("GET", "/api/v1/topics?limit=-1", None, 400),
        ("GET", "/api/v1/topics/a?limit=1", None, 400),
        ("DELETE", "/api/v1/topics/a?force=true", None, 400),
        ("GET", "/api/v1/groups?before=a", None, 400),
        ("GET", "/api/v1/keys?limit=x", None, 400),
        ("PUT", "/api/v1/topics", None, 405),
        ("POST", "/api/v1/topics", b"{", 400),
        ("POST", "/api/v1/topics", b"\xff", 400),
        ("POST", "/api/v1/topics", b'{"nam":"a"}', 400),
        ("POST", "/api/v1/topics", b'{"name":""}', 400),
        ("POST", "/api/v1/topics", b'{"name":"a","partitions":0}', 400),
        ("POST", "/api/v1/topics", b'{"name":"a","partitions":"x"}', 400),
        ("POST", "/api/v1/topics", b'{"name":"a","settings":{"durabilty":"ack"}}', 400),
        ("POST", "/api/v1/topics", b'{"name":"a","settings":{"retention_ms":-1}}', 400),
        ("POST", "/api/v1/keys", b'{"name":"a","role":"king"}', 400),
        ("POST", "/api/v1/topics", b" " * (MAX_BODY_BYTES + 1), 413),
    ],
)
def test_bad_requests_get_one_clear_line(
    tmp_path: Path, method: str, path: str, raw: bytes | None, status: int
) -> None:
    async def test(running: Running) -> None:
        answer = await running.call(method, path, raw=raw)
        assert answer.status == status
        error = answer.json["error"]
        assert set(error) == {"number", "name", "text"}
        assert error["text"] and "\n" not in error["text"]
        if status == 405:
            assert answer.headers["allow"] == "GET, POST"

    with_server(tmp_path, test)


def test_a_topic_twice(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        await running.call("POST", "/api/v1/topics", {"name": "t"})
        again = await running.call("POST", "/api/v1/topics", {"name": "t"})
        assert error_of(again) == (409, "TOPIC_EXISTS")

    with_server(tmp_path, test)


def test_a_defect_is_500_with_a_log_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(running: Running) -> None:
        def fail(after: str | None, limit: int) -> None:
            raise ZeroDivisionError("secret detail")

        engine = Overriding(running.server.engine, topic_names=fail)
        monkeypatch.setattr(running.server.http.api, "engine", engine)
        answer = await running.call("GET", "/api/v1/topics")
        assert error_of(answer) == (500, "INTERNAL")
        assert b"secret detail" not in answer.body

    with_server(tmp_path, test)
    assert "secret detail" in caplog.text


def test_http_over_tls_when_others_can_reach_it(tmp_path: Path) -> None:
    pem = make_certificate(tmp_path)

    async def test(running: Running) -> None:
        answer = await running.call("GET", "/readyz", tls=pem.client())
        assert answer.json == {"status": "ready"}

    with_server(
        tmp_path / "data", test,
        listeners__http="0.0.0.0:0", tls__certificate=pem.certificate, tls__key=pem.key,
        server__insecure="true",
    )  # fmt: skip


def test_many_calls_at_once(tmp_path: Path) -> None:
    async def test(running: Running) -> None:
        names = [f"t{number}" for number in range(20)]
        calls = [running.call("POST", "/api/v1/topics", {"name": name}) for name in names]
        answers = await asyncio.gather(*calls)
        assert {answer.status for answer in answers} == {201}
        listed = (await running.call("GET", "/api/v1/topics")).json["topics"]
        assert sorted(topic["name"] for topic in listed) == sorted(names)

    with_server(tmp_path, test)


@pytest.mark.parametrize("what", ["topics", "groups", "keys"])
def test_lists_in_parts(tmp_path: Path, what: str) -> None:
    async def test(running: Running) -> None:
        names = [f"n{number}" for number in range(5)]
        for name in names:
            if what != "groups":
                await running.call("POST", f"/api/v1/{what}", {"name": name})
            else:
                await running.call("POST", "/api/v1/topics", {"name": name})
                body = {"topic": name, "to": "latest"}
                await running.call("POST", f"/api/v1/groups/{name}/reset", body)

        async def listed(query: str) -> tuple[list[str], str | None]:
            answer = (await running.call("GET", f"/api/v1/{what}?{query}")).json
            return [one["name"] for one in answer[what]], answer.get("next")

        assert await listed("") == (names, None)
        assert await listed("limit=2") == (names[:2], "n1")
        assert await listed("limit=2&after=n1") == (names[2:4], "n3")
        assert await listed("limit=2&after=n3") == (names[4:], None)
        assert await listed("limit=5") == (names, None)
        assert await listed("after=n4") == ([], None)
        assert await listed("after=n") == (names, None)

    with_server(tmp_path, test)


def test_a_list_of_groups_looks_at_its_own_part_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(running: Running) -> None:
        await running.call("POST", "/api/v1/topics", {"name": "t"})
        for name in ("a", "b", "c", "d"):
            body = {"topic": "t", "to": "latest"}
            await running.call("POST", f"/api/v1/groups/{name}/reset", body)
        engine = running.server.engine
        asked = []
        group = engine.group

        def ask(name: str) -> object:
            asked.append(name)
            return group(name)

        monkeypatch.setattr(running.server.http.api, "engine", Overriding(engine, group=ask))
        page = (await running.call("GET", "/api/v1/groups?after=a&limit=1")).json
        assert ([one["name"] for one in page["groups"]], page["next"]) == (["b"], "b")
        # One more, to see whether there are more.
        assert asked == ["b", "c"]

    with_server(tmp_path, test)


@pytest.mark.parametrize("partitions", [DESCRIBED_AT_ONCE, DESCRIBED_AT_ONCE + 1])
def test_a_wide_topic_is_described_as_a_narrow_one(tmp_path: Path, partitions: int) -> None:
    """It is made and written in a thread; nobody sees that."""

    async def test(running: Running) -> None:
        made = await running.call("POST", "/api/v1/topics", {"name": "t", "partitions": partitions})
        assert (made.status, len(made.json["partition_details"])) == (201, partitions)
        await append(running, "t", b"v", partition=partitions - 1)
        found = await running.call("GET", "/api/v1/topics/t")
        assert found.headers["content-type"] == "application/json"
        assert found.json["partition_details"][-1]["latest"] == 1
        purged = (await running.call("POST", "/api/v1/topics/t/purge")).json
        assert purged["freed_bytes"] > 0 and purged["partition_details"][-1]["earliest"] == 1

    with_server(tmp_path, test)


def test_a_list_looks_at_no_partition_that_was_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a topic that is deleted while the list is made is left out."""

    async def test(running: Running) -> None:
        for name in ("gone", "wide"):
            await running.call("POST", "/api/v1/topics", {"name": name, "partitions": 50})
        engine = running.server.engine
        await append(running, "wide", b"v", partition=7)
        asked = []
        look = engine.partition_info

        def ask(topic: str, partition: int) -> object:
            asked.append((topic, partition))
            return look(topic, partition)

        written = engine.written_partitions

        def written_partitions(topic: str) -> list[int]:
            if topic == "gone":
                raise UnknownTopic(topic)
            return written(topic)

        other = Overriding(engine, partition_info=ask, written_partitions=written_partitions)
        monkeypatch.setattr(running.server.http.api, "engine", other)
        (one,) = (await running.call("GET", "/api/v1/topics")).json["topics"]
        assert (one["name"], one["partitions"], one["records"]) == ("wide", 50, 1)
        assert asked == [("wide", 7)]

    with_server(tmp_path, test)


def test_more_calls_than_may_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(running: Running) -> None:
        monkeypatch.setattr(app, "MAX_CALLS", 0)
        assert error_of(await running.call("GET", "/api/v1/topics")) == (503, "OVERLOADED")
        assert (await running.call("GET", "/metrics")).status == 200
        assert (await running.call("GET", "/healthz")).status == 200

    with_server(tmp_path, test)
