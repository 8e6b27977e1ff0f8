"""Felix over real QUIC, rows 80 to 96: the cache."""

import pytest
from conformance.felix.kit import ACKED, OK, SCOPE, reply
from conformance.quic import Wire
from kit.live_server import LiveServer
from sessions.felix.peer import b64, exact, message


def put(key: str, value: bytes = b"v", **fields: object) -> bytes:
    return message("cache_put", key=key, value=b64(value), **fields)


def get(key: str, **fields: object) -> bytes:
    return message("cache_get", key=key, **fields)


def value(key: str, found: bytes | None) -> bytes:
    """The reply to a get of the document without an id."""
    shown = "null" if found is None else f'"{b64(found)}"'
    return exact(f'{{"type":"cache_value","key":"{key}","value":{shown}}}')


def scoped(key: str, found: bytes | None, id: str = "") -> bytes:
    shown = "null" if found is None else f'"{b64(found)}"'
    return exact(
        '{"type":"cache_value","tenant_id":"t","namespace":"n","cache":"c",'
        f'"key":"{key}","value":{shown}{id}}}'
    )


@pytest.mark.row("felix-80")
@pytest.mark.row("felix-81")
def test_the_shapes_of_the_document(wire: Wire) -> None:
    stream = wire.open()
    wire.ask(stream, put("doc", request_id="1"), exact('{"type":"ok","request_id":"1"}'))
    found = exact('{"type":"cache_value","request_id":"2","key":"doc","value":"dg=="}')
    wire.ask(stream, get("doc", request_id="2"), found)


@pytest.mark.row("felix-82")
@pytest.mark.row("felix-89")
@pytest.mark.row("felix-90")
def test_values_that_are_not_there_are_null(wire: Wire) -> None:
    stream = wire.open()
    wire.ask(stream, get("miss"), value("miss", None))
    wire.ask(stream, put("ttl", ttl_ms=0) + get("ttl"), OK + value("ttl", None))
    wire.ask(stream, put("ttl", ttl_ms=None) + get("ttl"), OK + value("ttl", b"v"))
    wire.ask(stream, put("ttl", ttl_ms=0) + get("ttl"), OK + value("ttl", None))


@pytest.mark.row("felix-83")
@pytest.mark.row("felix-84")
def test_replies_to_a_native_put(wire: Wire) -> None:
    stream = wire.open()
    ok = bytes.fromhex("464c58310001000000000022") + b'{"type":"cache_ok","request_id":1}'
    wire.ask(stream, put("k", **SCOPE, request_id=1), ok)
    wire.ask(stream, put("k", **SCOPE), OK)
    wire.send(stream, b"", fin=True)
    assert wire.rest(stream) == b""


@pytest.mark.row("felix-85")
@pytest.mark.row("felix-86")
def test_a_native_get_mirrors_its_scope(wire: Wire) -> None:
    stream = wire.open()
    wire.ask(stream, put("g", **SCOPE), OK)
    wire.ask(stream, get("g", **SCOPE), scoped("g", b"v"))
    wire.ask(stream, get("g", **SCOPE, request_id=9), scoped("g", b"v", ',"request_id":9'))
    wire.send(stream, b"", fin=True)
    assert wire.rest(stream) == b""


@pytest.mark.row("felix-87")
@pytest.mark.parametrize("id", ["", ',"request_id":3'])
def test_a_cache_that_is_not_there(wire: Wire, id: str) -> None:
    stream = wire.open()
    lost = exact(f'{{"type":"error"{id},"message":"cache scope not found: t/n/x"}}')
    fields = {**SCOPE, "cache": "x"} | ({"request_id": 3} if id else {})
    wire.ask(stream, get("k", **fields) + put("k", **fields), lost * 2)
    wire.ask(stream, ACKED, OK)


@pytest.mark.row("felix-88")
def test_scopes_are_apart(wire: Wire) -> None:
    stream = wire.open()
    wire.ask(stream, put("where", b"default") + put("where", b"scoped", **SCOPE), OK * 2)
    wire.ask(wire.open(), get("where"), value("where", b"default"))
    wire.ask(wire.open(), get("where", **SCOPE), scoped("where", b"scoped"))


@pytest.mark.row("felix-91")
@pytest.mark.parametrize("ttl_ms", [-1, 1.5, "1", 2**63])
def test_times_to_live_that_are_none(wire: Wire, ttl_ms: object) -> None:
    stream = wire.open(put("bad", ttl_ms=ttl_ms, request_id=8))
    found = reply(wire, stream)
    assert (found["type"], found["request_id"]) == ("error", 8)
    wire.ask(stream, get("bad"), value("bad", None))


@pytest.mark.row("felix-92")
def test_a_second_put_replaces_value_and_time(wire: Wire, live: LiveServer) -> None:
    stream = wire.open()
    wire.ask(stream, put("twice", b"old", ttl_ms=1) + put("twice", b"new"), OK * 2)
    before = live.call(live.server.engine.run_us)
    wire.until(lambda: live.call(live.server.engine.run_us) > before + 2_000)
    wire.ask(stream, get("twice"), value("twice", b"new"))


@pytest.mark.row("felix-93")
def test_memory_of_expired_values_is_freed_without_a_read(wire: Wire, live: LiveServer) -> None:
    memory = live.server.broker.cache.memory
    before = live.call(lambda: (len(memory), memory.used_bytes))
    keys = [f"brief{number}" for number in range(100)]
    wire.ask(wire.open(), b"".join(put(key, bytes(1_000), ttl_ms=5) for key in keys), OK * 100)
    wire.until(lambda: live.call(lambda: (len(memory), memory.used_bytes)) == before)
    wire.ask(wire.open(), put("lazy", ttl_ms=1), OK)
    now = live.call(live.server.engine.run_us)
    wire.until(lambda: live.call(live.server.engine.run_us) > now + 1_000)
    wire.ask(wire.open(), get("lazy"), value("lazy", None))


@pytest.mark.row("felix-94")
def test_empty_keys_and_values(wire: Wire) -> None:
    wire.ask(wire.open(), put("", b"", **SCOPE) + get("", **SCOPE), OK + scoped("", b""))


@pytest.mark.row("felix-95")
def test_pipelined_gets_each_have_their_id(wire: Wire) -> None:
    stream = wire.open(b"".join(put(f"p{n}", b"%d" % n, request_id=n) for n in range(100)))
    assert {reply(wire, stream)["request_id"] for _ in range(100)} == set(range(100))
    wire.send(stream, b"".join(get(f"p{n}", request_id=n) for n in range(100)))
    found = [reply(wire, stream) for _ in range(100)]
    assert {one["request_id"]: one["value"] for one in found} == {
        n: b64(b"%d" % n) for n in range(100)
    }


@pytest.mark.row("felix-96")
def test_the_cache_and_publishes_on_one_stream(wire: Wire) -> None:
    sent = put("mixed") + ACKED + get("mixed") + ACKED
    wire.ask(wire.open(), sent, OK + OK + value("mixed", b"v") + OK)
