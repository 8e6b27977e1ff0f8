"""The lines of a starting server, for the servers that tests cannot start: fixed and open ports."""

import pytest

from penstock.server.address import Address
from penstock.server.banner import Facts, render, why_there


def facts(
    *listening: tuple[str, Address], tls: bool = False, key: bool = True, insecure: bool = False
) -> Facts:
    return Facts(listening, "./penstock-data", "default", tls, tls, key, insecure)


@pytest.mark.parametrize(
    ("listening", "command"),
    [
        ([("tcp", Address("127.0.0.1", 9092))], "penstock pub demo hello"),
        ([("tcp", Address("127.0.0.1", 7))], "penstock pub --server 127.0.0.1:7 demo hello"),
        ([("tcp", Address("0.0.0.0", 9092))], "penstock pub demo hello"),
        ([("tcp", Address("::", 7))], "penstock pub --server [::1]:7 demo hello"),
        ([("blipmq", Address("localhost", 7))], "penstock pub --server localhost:7 demo hello"),
        ([], "penstock pub demo hello"),
    ],
)
def test_the_first_message_finds_its_way(
    listening: list[tuple[str, Address]], command: str
) -> None:
    assert f"Send a message:  {command}\n" in render(facts(*listening))


def test_what_others_can_reach_is_said() -> None:
    outside = (("tcp", Address("0.0.0.0", 1)), ("http", Address("0.0.0.0", 2)))
    text = render(facts(*outside, tls=True, key=False, insecure=True))
    assert "RustLog and BlipMQ, with or without TLS" in text
    assert "https://0.0.0.0:2" in text
    assert "dev-key" not in text
    assert "insecure: other machines may connect" in text


def test_why_the_data_is_there() -> None:
    assert why_there("default", "default") == "default; change it with --data"
    assert why_there("file", "penstock.toml:3") == "from penstock.toml:3"
