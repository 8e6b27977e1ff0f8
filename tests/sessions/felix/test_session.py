"""Felix sessions without a socket: publishes, refusals, logins, the cache, ends of streams."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.bench import ANYBODY, Bench
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sessions.felix.peer import (
    NAMES,
    NOT_FOUND,
    TOPIC,
    Client,
    b64,
    exact,
    frames,
    message,
    publish,
    subscribe,
)
from sessions.kit import WAYS

from penstock.broker.access.access import Principal
from penstock.broker.options import BrokerOptions
from penstock.log.settings import TopicSettings
from penstock.sessions.felix.options import FelixOptions
from penstock.sessions.stream import SessionLimits
from penstock.wire.felix.batches import encode_publish_batch
from penstock.wire.felix.frames import framed

Way = Callable[[bytes], Iterator[bytes]]

NOBODY = Principal("nobody", "guest")
BATCH = encode_publish_batch("t", "n", "s", [b"hello", b""])

# --- publishes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (publish(ack="none"), b""),
        (publish(), b""),
        (BATCH, b""),
        (publish(ack="per_message"), exact('{"type":"ok"}')),
        (publish(ack="per_message", request_id=1), exact('{"type":"publish_ok","request_id":1}')),
        (publish(ack="per_batch", request_id="1"), exact('{"type":"ok","request_id":"1"}')),
        (
            message("publish_batch", **NAMES, payloads=[], ack="per_batch"),
            exact('{"type":"ok"}'),
        ),
        (
            publish(stream="none", ack="per_message", request_id=7),
            exact(f'{{"type":"publish_error","request_id":7,"message":"{NOT_FOUND}"}}'),
        ),
        (
            publish(stream="none", ack="per_message", request_id="7"),
            exact(f'{{"type":"error","request_id":"7","message":"{NOT_FOUND}"}}'),
        ),
        (
            publish(stream="none", ack="per_message"),
            exact(f'{{"type":"error","message":"{NOT_FOUND}"}}'),
        ),
        (publish(stream="none"), b""),
        (encode_publish_batch("t", "n", "none", [b"x"]), b""),
        (encode_publish_batch("", "", "", []), b""),
    ],
)
def test_replies_to_publishes(bench: Bench, sent: bytes, reply: bytes) -> None:
    """Rows 30 to 40, 48, 52, 53, 57, 58."""
    stream = Client(bench).open()
    assert stream.ask(sent) == reply
    assert not stream.recorder.finished


def test_what_is_dropped_without_an_answer_is_counted(bench: Bench) -> None:
    Client(bench).open().ask(publish(stream="none") + encode_publish_batch("t", "n", "no", [b"x"]))
    assert bench.broker.counters["felix"].refused["publish: unknown_topic"] == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_conversation_in_any_pieces(bench: Bench, way: Way) -> None:
    """Row 14: publishes of all kinds, in their order, and the rest of the messages between them."""
    stream = Client(bench).open()
    sent = (
        publish(b"1", ack="per_message", request_id=1)
        + BATCH
        + publish(b"2")
        + message("cache_put", key="k", value=b64(b"v"), request_id="2")
        + message("publish_batch", **NAMES, payloads=[b64(b"3"), b64(b"4")], ack="per_batch")
        + message("cache_get", key="k", request_id="3")
        + framed(b"not JSON")
    )
    for piece in way(sent):
        stream.session.receive(piece)
    replies = frames(stream.answers())
    assert [reply["type"] for reply in replies] == [
        "publish_ok",
        "ok",
        "ok",
        "cache_value",
        "error",
    ]
    assert replies[3] == {"type": "cache_value", "request_id": "3", "key": "k", "value": b64(b"v")}
    assert bench.values(TOPIC) == [b"1", b"hello", b"", b"2", b"3", b"4"]


def test_an_ack_comes_when_the_message_is_durable(bench: Bench) -> None:
    """Row 43."""
    stream = Client(bench).open()
    stream.session.receive(publish(ack="per_message"))
    assert stream.recorder.written == b"" and stream.session.busy()
    assert stream.answers() == exact('{"type":"ok"}')


def test_one_publish_too_large_does_not_take_the_others_along(bench: Bench) -> None:
    bench.broker.create_topic(
        ANYBODY, "t/n/small", 1, TopicSettings().changed({"record_bytes": 1024})
    )
    stream = Client(bench).open()
    sizes = (10, 2_000, 20)
    sent = [
        publish(bytes(size), stream="small", ack="per_message", request_id=number)
        for number, size in enumerate(sizes)
    ]
    found = frames(stream.ask(b"".join(sent)))
    assert [reply["type"] for reply in found] == ["publish_ok", "publish_error", "publish_ok"]
    assert [len(value) for value in bench.values("t/n/small")] == [10, 20]


def test_streams_are_made_where_that_is_allowed_and_found_as_soon_as_they_are_there(
    bench: Bench,
) -> None:
    """Rows 50, 98."""
    stream = Client(bench).open()
    ask = publish(stream="new", ack="per_message")
    assert frames(stream.ask(ask))[0]["type"] == "error"
    assert frames(Client(bench, FelixOptions(auto_create=True)).open().ask(ask)) == [{"type": "ok"}]
    assert frames(stream.ask(ask)) == [{"type": "ok"}]


@pytest.mark.parametrize(
    "names", [("a/b", "c", "d"), ("a", "b/c", "d"), ("", "n", "s"), ("t", "n", "s" * 300)]
)
def test_names_that_no_stream_can_have(bench: Bench, names: tuple[str, str, str]) -> None:
    fields: dict[str, Any] = dict(zip(NAMES, names, strict=True))
    stream = Client(bench, FelixOptions(auto_create=True)).open()
    assert frames(stream.ask(publish(ack="per_message", **fields)))[0]["type"] == "error"


def test_publishes_that_nobody_waits_for_hold_up_their_stream_too(bench: Bench) -> None:
    """Row 44: reading stops while too much is not durable."""
    stream = Client(bench, limits=SessionLimits(pending_bytes=1_000)).open()
    stream.session.receive(encode_publish_batch("t", "n", "s", [bytes(2_000)]))
    assert "pending" in stream.recorder.pauses
    bench.settle()
    assert "pending" not in stream.recorder.pauses


# --- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "FLX1"),
        (b"FLX1\x00\x02\x00\x00\x00\x00\x00\x00", "version 2"),
    ],
)
def test_a_header_that_is_none_closes_the_connection(bench: Bench, bad: bytes, words: str) -> None:
    """Rows 7 and 8: no frame is sent first, save the replies to what was good."""
    client = Client(bench)
    stream = client.open()
    assert stream.ask(publish(ack="per_message") + bad) == exact('{"type":"ok"}')
    assert client.connection.closed_with is not None
    code, reason = client.connection.closed_with
    assert code == 1 and words in reason


def test_a_frame_too_large_ends_its_stream_only(bench: Bench) -> None:
    """Row 11."""
    client = Client(bench, FelixOptions(max_frame_bytes=1_000))
    stream = client.open()
    found = stream.ask(b"FLX1\x00\x01\x00\x00\x00\x00\x03\xe9")
    assert found == exact('{"type":"error","message":"frame too large"}')
    assert stream.recorder.finished and client.connection.closed_with is None


@pytest.mark.parametrize(
    "bad",
    [
        framed(b""),
        framed(b"[]"),
        framed(b"\xff"),
        message("nothing"),
        message("publish", tenant_id="t"),
        publish(payload="AB=="),
        publish(ack="all"),
        message("cache_put", key="k", value="A"),
        message("cache_put", key="k", value="", ttl_ms=-1),
        framed(b"\x00", 1),
    ],
)
def test_a_bad_payload_is_an_error_and_the_stream_goes_on(bench: Bench, bad: bytes) -> None:
    """Rows 13, 21 to 25, 38, 54, 91."""
    stream = Client(bench).open()
    replies = frames(stream.ask(bad + publish(ack="per_message")))
    assert [reply["type"] for reply in replies] == ["error", "ok"]


def test_messages_of_servers_end_the_stream(bench: Bench) -> None:
    """Rows 26 and 27."""
    stream = Client(bench).open()
    found = stream.ask(message("ok", request_id=3) + publish(ack="per_message"))
    assert found == exact('{"type":"error","request_id":3,"message":"unexpected message type"}')
    assert stream.recorder.finished
    silent = Client(bench).open()
    assert silent.ask(message("error", message="x")) == b""
    assert silent.recorder.finished


@pytest.mark.parametrize("cut", [1, 11, 12, 40])
def test_the_end_of_input(bench: Bench, cut: int) -> None:
    """Rows 15 to 17: all replies, then the end of our side; nothing for a frame that is cut off."""
    stream = Client(bench).open()
    stream.session.receive(publish(ack="per_message") * 2 + publish(ack="per_message")[:cut])
    stream.session.end_of_input()
    assert not stream.recorder.finished
    assert stream.answers() == exact('{"type":"ok"}') * 2
    assert stream.recorder.finished


def test_streams_in_one_direction_publish_and_are_never_answered(bench: Bench) -> None:
    """Rows 18 and 19."""
    client = Client(bench)
    stream = client.open(unidirectional=True)
    assert stream.ask(publish(b"1", ack="per_message", request_id=1) + BATCH) == b""
    assert stream.ask(publish(stream="none", ack="per_message", request_id=1)) == b""
    assert bench.values(TOPIC) == [b"1", b"hello", b""]
    assert stream.recorder.stop_code is None
    assert stream.ask(message("cache_get", key="k")) == b""
    assert stream.recorder.stop_code == 0
    other = client.open(unidirectional=True)
    assert other.ask(framed(b"?")) == b""
    assert other.recorder.stop_code == 0
    assert client.connection.closed_with is None


# --- who -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [publish(ack="per_message", request_id="1"), subscribe(request_id="1")]
)
def test_who_may_not_is_told_unauthorized(bench: Bench, sent: bytes) -> None:
    (reply,) = frames(Client(bench, principal=NOBODY).open().ask(sent))
    assert (reply["type"], reply["request_id"]) == ("error", "1")
    assert reply["message"].startswith("unauthorized")


def test_a_login_holds_for_its_stream(bench: Bench) -> None:
    """Row 100: a bare ok, or auth_ok for a client that names its flags."""
    client = Client(bench, principal=NOBODY)
    assert client.connection.logins == 0
    stream = client.open()
    assert frames(stream.ask(message("auth", token="wrong") + publish(ack="per_message"))) == [
        {"type": "error", "message": "unauthorized"},
        {"type": "error", "message": "unauthorized"},
    ]
    assert frames(stream.ask(message("auth", token="dev-key"))) == [{"type": "ok"}]
    assert frames(stream.ask(publish(ack="per_message"))) == [{"type": "ok"}]
    later = client.open()
    assert frames(later.ask(message("auth", token="dev-key", tenant_id="t", client_flags=63))) == [
        {"type": "auth_ok", "server_flags": 3}
    ]
    assert frames(client.open().ask(publish(ack="per_message")))[0]["type"] == "error"


def test_too_many_failed_logins_close_the_connection(bench: Bench) -> None:
    client = Client(bench, principal=NOBODY, limits=SessionLimits(failed_logins=2))
    client.open().ask(message("auth", token="wrong"))
    assert client.connection.closed_with is None
    client.connection.failed_logins = 1
    stream = client.open()
    stream.recorder.failed_logins = 1
    stream.ask(message("auth", token="wrong"))
    assert client.connection.closed_with is not None


def test_a_peer_without_rights_may_send_small_frames_only(bench: Bench) -> None:
    stream = Client(bench, principal=NOBODY).open()
    found = stream.ask(b"FLX1\x00\x01\x00\x00\x00\x10\x00\x00")
    assert frames(found) == [{"type": "error", "message": "frame too large"}]


# --- the cache -------------------------------------------------------------------------------------

SCOPE: dict[str, Any] = {"tenant_id": "t", "namespace": "n", "cache": "c"}


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (
            message("cache_put", key="k", value="dg==", request_id="1"),
            '{"type":"ok","request_id":"1"}',
        ),
        (
            message("cache_put", **SCOPE, key="k", value="dg==", request_id=1),
            '{"type":"cache_ok","request_id":1}',
        ),
        (message("cache_put", **SCOPE, key="k", value="dg=="), '{"type":"ok"}'),
        (
            message("cache_get", key="k", request_id="2"),
            '{"type":"cache_value","request_id":"2","key":"k","value":null}',
        ),
        (
            message("cache_get", **SCOPE, key="k"),
            '{"type":"cache_value","tenant_id":"t","namespace":"n","cache":"c","key":"k","value":null}',
        ),
        (
            message("cache_get", **{**SCOPE, "cache": "x"}, key="k", request_id=3),
            '{"type":"error","request_id":3,"message":"cache scope not found: t/n/x"}',
        ),
    ],
)
def test_replies_of_the_cache(bench: Bench, sent: bytes, reply: str) -> None:
    """Rows 80 to 87."""
    assert Client(bench).open().ask(sent) == exact(reply)


def test_scopes_of_the_cache_are_apart(bench: Bench) -> None:
    """Rows 88 to 90, 92, 94."""
    stream = Client(bench).open()

    def get(**scope: str) -> str | None:
        found = frames(stream.ask(message("cache_get", key="", **scope)))[0]["value"]
        assert found is None or isinstance(found, str)
        return found

    def put(value: bytes, ttl_ms: int | None = None, **scope: str) -> None:
        fields = {"key": "", "value": b64(value), "ttl_ms": ttl_ms, **scope}
        assert frames(stream.ask(message("cache_put", **fields))) == [{"type": "ok"}]

    put(b"default")
    put(b"", **SCOPE)
    assert (get(), get(**SCOPE)) == (b64(b"default"), "")
    put(b"gone", 0)
    assert get() is None
    put(b"soon", 10)
    put(b"stays")
    bench.advance(2_000)
    assert get() == b64(b"stays")


def test_caches_are_made_where_that_is_allowed(bench: Bench) -> None:
    """By the first value; two that come together are no conflict."""
    stream = Client(bench, FelixOptions(auto_create=True)).open()
    scope = {**SCOPE, "cache": "new"}
    assert frames(stream.ask(message("cache_get", **scope, key="k")))[0]["value"] is None
    assert not bench.broker.tenants.has_cache("t/n/new")
    put = message("cache_put", **scope, key="k", value="dg==")
    assert frames(stream.ask(put * 2)) == [{"type": "ok"}] * 2
    assert bench.broker.tenants.has_cache("t/n/new")
    assert frames(Client(bench).open().ask(message("cache_get", **scope, key="k")))[0]["value"]


def test_who_may_not_use_the_cache(bench: Bench) -> None:
    reader = Principal("reader", "reader")
    stream = Client(bench, principal=reader).open()
    (put, get) = frames(
        stream.ask(message("cache_put", key="k", value="") + message("cache_get", key="k"))
    )
    assert put["message"].startswith("unauthorized: reader may not write to cache")
    assert get["type"] == "cache_value"


def test_many_gets_are_answered_in_order_and_as_far_as_the_peer_reads(bench: Bench) -> None:
    """A run is answered in pieces: a peer that does not read gets one of them."""
    size = 40_000
    stream = Client(bench).open(room=4 * size)
    values = {str(number): bytes([number]) * size for number in range(10)}
    for key, value in values.items():
        stream.ask(message("cache_put", key=key, value=b64(value)))
    found = frames(stream.ask(b"".join(message("cache_get", key=key) for key in values)))
    assert 1 < len(found) < 6, "it has room for less than four"
    while len(found) < len(values):
        assert stream.recorder.read_all()
        stream.session.writable()
        more = frames(stream.answers())
        assert more
        found += more
    assert [(one["key"], one["value"]) for one in found] == [
        (key, b64(value)) for key, value in values.items()
    ]
    assert not stream.session.busy()


def test_gets_give_way_when_their_turn_is_over(bench: Bench) -> None:
    stream = Client(bench).open()
    stream.ask(message("cache_put", key="k", value=b64(bytes(70_000))))
    stream.recorder.turn_looks = 1
    gets = message("cache_get", key="k") * 3
    assert len(frames(stream.ask(gets))) == 1 and stream.session.busy()
    stream.recorder.turn_looks = None
    stream.session.writable()
    assert len(frames(stream.answers())) == 2 and not stream.session.busy()


def test_gets_wait_for_a_cache_that_is_being_read(tmp_path: Path) -> None:
    """With what comes behind them; a refusal is told at once all the same."""
    stored = BrokerOptions(tenants=("t/n/c",), cache_topic="felix.cache")
    before = Bench(str(tmp_path / "data"), stored)
    before.settle()
    Client(before).open().ask(message("cache_put", key="k", value="dg=="))
    before.close()
    after = Bench(str(tmp_path / "data"), stored)
    stream = Client(after).open()
    asked = [message("cache_get", key=key, request_id=key) for key in ("k", "none", "k")]
    stream.session.receive(b"".join(asked) + message("cache_get", **SCOPE, key="k"))
    assert stream.recorder.written == b"" and stream.session.busy()
    found = frames(stream.answers())
    assert [one["value"] for one in found] == ["dg==", None, "dg==", None]
    assert [one.get("request_id") for one in found] == ["k", "none", "k", None]
    after.close()


# --- anything --------------------------------------------------------------------------------------

PIECES = st.one_of(
    st.sampled_from([BATCH, publish(ack="per_message"), subscribe(), subscribe(subscription_id=4)]),
    st.sampled_from([message("cache_get", key="k"), message("auth", token="x"), framed(b"{}")]),
    st.binary(max_size=15),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)
@given(st.lists(PIECES, max_size=8), st.booleans())
def test_any_bytes_leave_nothing_behind(bench: Bench, pieces: list[bytes], one_way: bool) -> None:
    """The invariant: no failure of ours, and nothing is left once the peer is gone."""
    client = Client(bench)
    stream = client.open(unidirectional=one_way)
    for piece in pieces:
        stream.session.receive(piece)
    stream.session.end_of_input()
    bench.settle()
    assert stream.recorder.finished
    stream.session.closed()
    for _, session in client.connection.opened:
        session.closed()
    client.session.closed()
    assert stream.recorder.failures == 0
    assert bench.broker.fanout.counters.subscriptions == 0
