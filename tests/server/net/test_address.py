"""Listening addresses: reading, writing, and which of them only this machine can reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.net.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092, True),
        ("127.8.9.10:0", "127.8.9.10", 0, True),
        ("[::1]:65535", "::1", 65535, True),
        ("[::ffff:127.0.0.1]:1", "::ffff:7f00:1", 1, True),
        ("localhost:5555", "localhost", 5555, True),
        ("LocalHost.:5555", "LocalHost.", 5555, True),
        ("0.0.0.0:9092", "0.0.0.0", 9092, False),
        ("[::]:9092", "::", 9092, False),
        ("10.0.0.1:80", "10.0.0.1", 80, False),
        ("broker.example.com:9092", "broker.example.com", 9092, False),
        ("my_service:9092", "my_service", 9092, False),
        ("localhost.example.com:1", "localhost.example.com", 1, False),
        ("127.0.0.1.example.com:1", "127.0.0.1.example.com", 1, False),
    ],
)
def test_address(text: str, host: str, port: int, loopback: bool) -> None:
    address = parse_address(text)
    assert (address.host, address.port, address.is_loopback) == (host, port, loopback)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "9092", "127.0.0.1", ":9092", "host:", "host:-1", "host:65536", "host:999999",
        "host:9092x", "::1:9092", "[::1]", "[::1:9092", "[127.0.0.1]:1", "[]:1", "[host]:1",
        "256.0.0.1:1", "1.2.3:1", "127.1:1", "ho st:1", "host\n:1", "-host:1", "host-:1", "a..b:1",
        "host:\u0661", "x" * 300 + ":1", "http://host:1",
    ],
)  # fmt: skip
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="host:port such as"):
        parse_address(text)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert parse_address(str(address)) == address


def test_written_with_brackets_only_for_ipv6() -> None:
    assert str(Address("::1", 5)) == "[::1]:5"
    assert str(Address("localhost", 5)) == "localhost:5"
