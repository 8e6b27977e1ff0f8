"""A connection that is gone leaves no cycle of objects: its buffers are free at once, and not when the
garbage collector comes by, which is seldom (server/memory.py)."""

import asyncio
import gc
import gzip
import struct
from pathlib import Path

import pytest
from conformance.blipmq.peer import auth, hello, message, poll, subscribe
from conformance.flymq.peer import fetch, frame, produce, text
from kit.echo_server import PATIENCE_S, hang_up, next_turn, run
from kit.running_server import Running, running_server

OURS = ("penstock.server.net", "penstock.sessions")

BEGUN_FRAME = struct.pack(">I", 5_000_000) + b'{"Produce"' + bytes(100_000)
PRODUCE = b'{"Produce":{"topic":"t","partition":0,"records":[[1]]}}'
FETCH = b'{"Fetch":{"topic":"t","partition":0,"offset":0,"max_bytes":9}}'
LOGIN = hello(1) + auth(2)
FLYMQ_PLACE = text("t") + text("g") + bytes(4)
FLYMQ = [
    frame(0x01, produce("t", b"v", b"k")) * 20,
    frame(0x01, produce("t", b"v", b"", 9)),
    frame(0x05, FLYMQ_PLACE + text("latest")),
    frame(0x06, FLYMQ_PLACE + bytes(8)),
    frame(0x07, fetch("t", 0, 9, 0, "v")),
    frame(0x08, gzip.compress(b"", mtime=0), 0x03),
    frame(0x09, text("t")),
    frame(0x62),
    frame(0x66, FLYMQ_PLACE + bytes(8)),
    frame(0x70, text("al") + text("pw")),
    frame(0x99),
    frame(0x01, bytes(1_000))[:500],
]


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@pytest.mark.parametrize(
    "sent",
    [
        BEGUN_FRAME,
        framed(PRODUCE) * 50 + BEGUN_FRAME,
        framed(PRODUCE) * 5 + framed(FETCH) + framed(PRODUCE),
        LOGIN + subscribe(3, "t") + message(4, "t", b"v") * 50 + poll(5, 1) * 20,
        LOGIN + BEGUN_FRAME,
        b"".join(FLYMQ),
        b"nothing that is known",
    ],
    ids=[
        "begun",
        "produces",
        "fetch between",
        "unacknowledged",
        "begun BlipMQ",
        "FlyMQ",
        "unknown",
    ],
)
def test_nothing_waits_for_the_collector(
    tmp_path: Path, collected: list[object], sent: bytes
) -> None:
    async def body() -> None:
        async with running_server(tmp_path, rustlog__auto_create="true") as running:
            for _ in range(3):
                await one_connection(running, sent)
            gc.collect()

    run("uvloop", body)
    left = {type(one) for one in collected if type(one).__module__.startswith(OURS)}
    assert left == set()


async def one_connection(running: Running, sent: bytes) -> None:
    hub = running.server.hub
    books = [hub.counters.of(protocol) for protocol in ("undecided", "blipmq", "rustlog", "flymq")]
    before = sum(book.bytes_in for book in books)
    async with asyncio.timeout(PATIENCE_S):
        _, writer = await asyncio.open_connection("127.0.0.1", running.port("tcp"))
        writer.write(sent)
        while sum(book.bytes_in for book in books) < before + len(sent):
            await next_turn()
        await hang_up(writer)
        while hub.connections:
            await next_turn()
