"""The lines of a starting server, for the servers that tests cannot start: fixed and open ports."""

import pytest

from penstock.server.address import Address
from penstock.server.banner import Facts, render, why_there


def facts(
    *listening: tuple[str, Address], tls: bool = False, key: bool = True, insecure: bool = False
) -> Facts:
    return Facts(listening, "./penstock-data", "default", tls, tls, key, insecure)


@pytest.mark.parametrize(
    ("name", "address", "line"),
    [
        ("tcp", Address("127.0.0.1", 9092), "Send a message:  penstock pub demo hello"),
        ("tcp", Address("0.0.0.0", 9092), "Send a message:  penstock pub demo hello"),
        ("tcp", Address("::", 7), "Send a message:  penstock pub --server [::1]:7 demo hello"),
        ("blipmq", Address("box", 7), "Send a message:  penstock pub --server box:7 demo hello"),
        ("http", Address("127.0.0.1", 8080), "Read it again:   penstock cat demo"),
        ("http", Address("box", 7), "Read it again:   penstock cat --http http://box:7 demo"),
    ],
)
def test_the_first_commands_find_the_server(name: str, address: Address, line: str) -> None:
    assert render(facts((name, address))).splitlines()[-1] == line


def test_no_listener_no_commands() -> None:
    assert "penstock pub" not in render(facts())


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
