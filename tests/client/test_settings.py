"""Addresses and the times between attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.settings import Backoff, parse_server


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092, "127.0.0.1:9092"),
        ("broker", "broker", 9092, "broker:9092"),
        (" broker:1 ", "broker", 1, "broker:1"),
        ("[::1]:5555", "::1", 5555, "[::1]:5555"),
        ("[::1]", "::1", 9092, "[::1]:9092"),
    ],
)
def test_addresses(text: str, host: str, port: int, shown: str) -> None:
    address = parse_server(text)
    assert (address.host, address.port, str(address)) == (host, port, shown)


@pytest.mark.parametrize(
    "text", ["", ":1", "host:", "host:0", "host:65536", "host:x", "::1", "[::1", "[::1]x", "a:1:2"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is no server address, write host:port"):
        parse_server(text)


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_stay_between_half_the_base_and_the_cap(attempt: int, random: float) -> None:
    backoff = Backoff(base_s=0.1, cap_s=10.0)
    delay_s = backoff.delay_s(attempt, lambda: random)
    assert 0.05 <= delay_s <= 10.0
    assert delay_s <= backoff.delay_s(attempt + 1, lambda: random)
