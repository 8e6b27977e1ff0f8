"""The HTTP calls that take something away, and what the server's limits and the last admin key refuse."""

from pathlib import Path

from kit.echo_server import run
from kit.running_server import Answer, running_server


def error_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["name"]


def test_a_topic_is_purged_and_a_group_deleted(tmp_path: Path) -> None:
    async def body() -> None:
        async with running_server(tmp_path) as running:
            assert (await running.call("POST", "/api/v1/topics", {"name": "t"})).status == 201
            to_end = {"topic": "t", "to": "latest"}
            assert (await running.call("POST", "/api/v1/groups/g/reset", to_end)).status == 200
            purged = await running.call("POST", "/api/v1/topics/t/purge")
            assert (purged.status, purged.json["records"], purged.json["freed_bytes"]) == (
                200,
                0,
                0,
            )
            answer = await running.call("POST", "/api/v1/topics/no/purge")
            assert error_of(answer) == (404, "UNKNOWN_TOPIC")
            assert (await running.call("DELETE", "/api/v1/groups/g")).status == 204
            answer = await running.call("DELETE", "/api/v1/groups/g")
            assert error_of(answer) == (404, "UNKNOWN_GROUP")
            bad = await running.call("POST", "/api/v1/groups/a%0Ab/reset", to_end)
            assert error_of(bad) == (400, "INVALID_REQUEST")
            assert "control character U+000A" in bad.json["error"]["text"]

    run("uvloop", body)


def test_limits_are_told(tmp_path: Path) -> None:
    async def body() -> None:
        settings = {"limits__topics": "1", "limits__groups": "1", "limits__partitions": "2"}
        async with running_server(tmp_path, **settings) as running:
            wide = {"name": "t", "partitions": 3}
            answer = await running.call("POST", "/api/v1/topics", wide)
            assert error_of(answer) == (409, "LIMIT_REACHED")
            assert (await running.call("POST", "/api/v1/topics", {"name": "t"})).status == 201
            answer = await running.call("POST", "/api/v1/topics", {"name": "u"})
            assert error_of(answer) == (409, "LIMIT_REACHED")
            answer = await running.call("PATCH", "/api/v1/topics/t", {"partitions": 3})
            assert error_of(answer) == (409, "LIMIT_REACHED")
            start = {"topic": "t", "to": "earliest"}
            assert (await running.call("POST", "/api/v1/groups/g/reset", start)).status == 200
            answer = await running.call("POST", "/api/v1/groups/h/reset", start)
            assert error_of(answer) == (409, "LIMIT_REACHED")

    run("uvloop", body)


def test_the_last_admin_key_is_revoked_by_force(tmp_path: Path) -> None:
    async def body() -> None:
        async with running_server(tmp_path) as running:
            made = await running.call("POST", "/api/v1/keys", {"name": "ops", "role": "admin"})
            assert made.status == 201
            answer = await running.call("DELETE", "/api/v1/keys/ops")
            assert error_of(answer) == (409, "LAST_ADMIN_KEY")
            answer = await running.call("DELETE", "/api/v1/keys/ops?force=perhaps")
            assert error_of(answer) == (400, "INVALID_REQUEST")
            assert (await running.call("DELETE", "/api/v1/keys/ops?force=true")).status == 204

    run("uvloop", body)
