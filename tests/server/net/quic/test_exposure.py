"""Felix and Fujin beyond this machine: who does not log in may do nothing, unless the listener's principal
is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conformance.quic import Wire
from kit.echo_server import make_certificate
from kit.live_server import LiveServer
from sessions.felix.peer import NAMES, TOPIC, exact, message, publish
from sessions.fujin.peer import WRITER, connect_reader, done, write

from penstock.server.server import Exposed

KEY = '[[keys]]\nname = "k"\nkey = "a-secret"\nrole = "user"\n'
ACKED = publish(ack="per_message")
OK = exact('{"type":"ok"}')
NO = exact('{"type":"error","message":"unauthorized"}')


def outside(directory: Path, listener: str, **settings: str) -> LiveServer:
    """With a key and TLS, which a server beyond loopback must have."""
    pem = make_certificate(directory)
    config = directory / "penstock.toml"
    config.write_text(KEY)
    chosen = {
        f"listeners.{listener}": "0.0.0.0:0",
        "tls.certificate": pem.certificate,
        "tls.key": pem.key,
        "felix.streams": TOPIC,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    return LiveServer(directory / "data", chosen, config)


def refused_by_felix(wire: Wire) -> bool:
    stream = wire.open(ACKED + message("subscribe", **NAMES) + message("cache_get", key="k"))
    if wire.take(stream, len(OK)) == OK:
        return False
    assert wire.take(stream, 3 * len(NO) - len(OK)) == (NO * 3)[len(OK) :]
    # A login opens the door, on its stream.
    wire.ask(stream, message("auth", token="a-secret") + ACKED, OK * 2)
    return True


def refused_by_fujin(wire: Wire) -> bool:
    stream = wire.open(WRITER + write(1, b"x", TOPIC.encode()))
    if wire.take(stream, 6) == done(2, 1):
        return False
    reader = wire.open(connect_reader(TOPIC))
    assert wire.take(reader, 2) == b"\1\1"
    return True


PROTOCOLS: dict[str, tuple[list[str] | None, Callable[[Wire], bool]]] = {
    "felix": (None, refused_by_felix),
    "fujin": (["fujin"], refused_by_fujin),
}


@pytest.mark.parametrize("listener", ["udp", "felix", "fujin"])
def test_without_keys_the_server_does_not_start(tmp_path: Path, listener: str) -> None:
    live = LiveServer(tmp_path, {f"listeners.{listener}": "0.0.0.0:0"})
    with (
        pytest.raises(Exposed, match=rf"listeners\.{listener} \(0\.0\.0\.0:0\) can be reached"),
        live,
    ):
        pytest.fail("it started")


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("listener", ["udp", "own"])
def test_nobody_may_do_anything_unless_the_principal_is_named(
    tmp_path: Path, protocol: str, listener: str, named: bool
) -> None:
    applications, is_refused = PROTOCOLS[protocol]
    listener = protocol if listener == "own" else listener
    settings: dict[str, Any] = {f"{protocol}__principal": "k"} if named else {}
    with outside(tmp_path, listener, **settings) as live:
        wire = Wire(live, applications, listener)
        assert is_refused(wire) != named
        wire.close()
        # The principal of one protocol is not that of the other.
        other = "fujin" if protocol == "felix" else "felix"
        if listener == "udp":
            wire = Wire(live, PROTOCOLS[other][0], listener)
            assert PROTOCOLS[other][1](wire)
            wire.close()
