"""Pages of records: as JSON, in pieces, off the loop."""

import base64
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from kit.echo_server import run
from kit.running_server import Running, running_server

from penstock.broker.access.access import Principal
from penstock.broker.records import Records
from penstock.server.http import pages

ADMIN = Principal("test", "admin")


async def fill(running: Running, count: int, size: int) -> None:
    await running.call("POST", "/api/v1/topics", {"name": "t"})
    values = [b"%06d" % number + bytes(size) for number in range(count)]
    await running.server.broker.publish(ADMIN, "t", 0, Records(values))


def values_of(answer: Any) -> list[bytes]:
    return [base64.b64decode(record["value"])[:6] for record in answer["records"]]


@pytest.mark.parametrize("limit", [0, 1, 63, 64, 65, 200, 1000])
def test_a_page_is_the_same_in_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    async def body() -> None:
        async with running_server(tmp_path) as running:
            await fill(running, 200, 10)
            path = f"/api/v1/topics/t/records?limit={limit}"
            found = []
            for records in (1, 64, 10_000):
                monkeypatch.setattr(pages, "PIECE_RECORDS", records)
                found.append((await running.call("GET", path)).body)
            assert found == [found[0]] * 3
            answer = json.loads(found[0])
            shown = min(limit, 200)
            assert values_of(answer) == [b"%06d" % number for number in range(shown)]
            assert (answer["next_offset"], answer["end_offset"]) == (shown, 200)

    run("uvloop", body)


def test_pieces_are_small_and_made_in_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []
    pieces_of = pages.Page.pieces

    def watched(page: pages.Page) -> Any:
        for piece in pieces_of(page):
            made.append((threading.current_thread().name, len(piece)))
            yield piece

    monkeypatch.setattr(pages.Page, "pieces", watched)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            await fill(running, 2000, 1000)
            path = "/api/v1/topics/t/records?limit=10000&max_bytes=8388608"
            answer = await running.call("GET", path)
            assert len(values_of(answer.json)) == 2000

    run("uvloop", body)
    assert {name for name, _ in made} == {"penstock-http-pages_0"}
    assert len(made) > 20
    assert max(size for _, size in made) < 2 * pages.PIECE_BYTES
