"""Felix over real QUIC, rows 97 to 100: stop, streams on demand, logins."""

from pathlib import Path

import pytest
from conformance.felix.kit import ACKED, OK, SETTINGS, Events, event
from conformance.quic import Wire
from kit.limits import HANG_S
from kit.live_server import LiveServer
from sessions.felix.peer import exact, message, publish, subscribe

PUT = message("cache_put", tenant_id="t", namespace="n", cache="c", key="k", value="")


@pytest.mark.row("felix-97")
def test_a_stop_flushes_finishes_event_streams_and_closes_with_0(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", SETTINGS) as live:
        wire = Wire(live)
        stream = wire.open()
        wire.ask(stream, subscribe(), OK)
        events = Events(wire)
        events.next()
        wire.ask(stream, publish(b"last", ack="per_message"), OK)
        stopping = live.begin(live.server.stop())
        assert wire.closed()[0] == 0
        assert events.stream() in wire.peer.finished
        assert events.next() == event(b"last")
        wire.close()
        stopping.result(HANG_S)


@pytest.mark.row("felix-98")
@pytest.mark.parametrize(
    "settings",
    [
        {"felix.auto_create": "true"},
        {"felix.streams": "t/n/s", "felix.caches": "t/n/c"},
        {"felix.tenants": "t", "felix.namespaces": "t/n", "felix.streams": "t/n/s",
         "felix.caches": "t/n/c"},
    ],
)  # fmt: skip
def test_a_server_alone_has_streams_from_its_configuration_or_makes_them(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with LiveServer(tmp_path / "data", settings) as live:
        wire = Wire(live)
        wire.ask(wire.open(), subscribe() + ACKED + PUT, OK * 3)
        events = Events(wire)
        assert [events.next()["type"], events.next()] == ["event_stream_hello", event(b"x")]
        wire.close()


@pytest.mark.row("felix-98")
def test_without_either_nothing_is_found(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data") as live:
        wire = Wire(live)
        text = "stream not found: tenant=t namespace=n stream=s"
        wire.ask(wire.open(), ACKED, exact(f'{{"type":"error","message":"{text}"}}'))
        wire.close()


@pytest.mark.row("felix-100")
@pytest.mark.parametrize(
    ("auth", "answer"),
    [
        (message("auth", token="dev-key"), OK),
        (
            message("auth", token="dev-key", tenant_id="t", client_flags=63),
            exact('{"type":"auth_ok","server_flags":3}'),
        ),
    ],
)
def test_a_login_makes_its_stream_native(wire: Wire, auth: bytes, answer: bytes) -> None:
    subscribed = exact('{"type":"subscribed","subscription_id":1}')
    wire.ask(wire.open(), auth + subscribe(), answer + subscribed)
    assert Events(wire).next() == {"type": "event_stream_hello", "subscription_id": 1}
    wire.ask(wire.open(), subscribe(), OK)  # another stream is not


def test_where_a_login_is_wanted_a_wrong_or_missing_one_is_unauthorized(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", SETTINGS) as live:
        key = live.server.broker.access.create_key("app", "user", ("*",))
    with LiveServer(tmp_path / "data", SETTINGS) as live:
        wire = Wire(live)
        no = exact('{"type":"error","message":"unauthorized"}')
        stream = wire.open()
        get = message("cache_get", key="k")
        wire.ask(stream, ACKED + subscribe() + get + message("auth", token="wrong"), no * 4)
        wire.ask(stream, message("auth", token=key) + ACKED, OK * 2)
        # The login is that of its stream.
        wire.ask(wire.open(), ACKED, no)
        wire.close()
