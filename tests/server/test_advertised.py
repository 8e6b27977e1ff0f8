"""Which address of Flight a gateway names to clients of others. Nothing is started."""

import re

import pytest

from penstock.server.config.loading import load_config
from penstock.server.server import Server


@pytest.mark.parametrize(
    ("flight", "advertise", "named"),
    [
        ("127.0.0.1:0", "off", r"127\.0\.0\.1:\d+"),
        ("[::1]:0", "off", r"\[::1\]:\d+"),
        ("0.0.0.0:0", "off", ""),
        ("[::]:0", "off", ""),
        # The port is Flight's own: that of the option is for the wire protocols.
        ("0.0.0.0:0", "gateway-1.example.org:9092", r"gateway-1\.example\.org:(?!9092$)\d+"),
        ("127.0.0.1:0", "gateway-1.example.org:9092", r"gateway-1\.example\.org:(?!9092$)\d+"),
        ("off", "gateway-1.example.org:9092", ""),
    ],
)
def test_what_is_named(flight: str, advertise: str, named: str) -> None:
    names = ("tcp", "http", "blipmq", "rustlog", "flymq", "felix", "fujin", "udp")
    flags = {f"listeners.{name}": "off" for name in names}
    flags |= {"listeners.flight": flight, "server.advertise": advertise}
    server = Server(load_config(None, {}, flags), environment={})
    server._bind()
    try:
        assert re.fullmatch(named, server._flight_address())
    finally:
        for one in server.listeners.values():
            one.close()
