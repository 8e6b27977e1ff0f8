"""What a principal may do: roles, topic rules, and the answers that are remembered."""

import pytest

from penstock.broker.access import access as access_module
from penstock.broker.access.access import ALL_TOPICS, Access, Principal
from penstock.broker.access.rights import ROLE_ACTIONS, Action
from penstock.server.config.schema import ROLES


@pytest.fixture
def access() -> Access:
    return Access(None, (), development_key=False, anonymous=Principal("anonymous", "reader"))


ACTIONS: tuple[Action, ...] = ("read", "write", "admin")


@pytest.mark.parametrize(
    ("role", "can"),
    [
        ("admin", {"read", "write", "admin"}),
        ("user", {"read", "write"}),
        ("writer", {"write"}),
        ("reader", {"read"}),
        ("stranger", set()),
    ],
)
@pytest.mark.parametrize("rules", [(), ALL_TOPICS, ("orders.*",)])
def test_roles(access: Access, role: str, can: set[str], rules: tuple[str, ...]) -> None:
    principal = Principal("p", role, rules)
    assert {act for act in ACTIONS if access.allowed(principal, act, "orders.new")} == can


def test_the_roles_are_those_of_the_configuration() -> None:
    assert set(ROLE_ACTIONS) == set(ROLES)


@pytest.mark.parametrize(
    ("rules", "topic", "expected"),
    [
        ((), "anything", True),
        (("*",), "a/b.c", True),
        (("orders.*",), "orders.new", True),
        (("orders.*",), "orders.new.eu/1", True),
        (("orders.*",), "orders", False),
        (("orders.*",), "Orders.new", False),
        (("ORDERS.*",), "orders.new", False),
        (("orders.*",), "reorders.new", False),
        (("orders*",), "orders", True),
        (("tenant/*/orders",), "tenant/a/b/orders", True),
        (("*.dlq",), "orders.dlq", True),
        (("a?",), "ab", True),
        (("a?",), "a", False),
        (("log-[0-9]",), "log-7", True),
        (("log-[0-9]",), "log-x", False),
        (("a", "b"), "b", True),
        (("a", "b"), "c", False),
        (("a.b",), "axb", False),
        (("grüße.*",), "grüße.neu", True),
        (("a*",), "a\nb", True),
        # The server as a whole.
        (("orders.*",), "", False),
        (("*",), "", True),
        ((), "", True),
    ],
)
def test_rules(access: Access, rules: tuple[str, ...], topic: str, expected: bool) -> None:
    principal = Principal("p", "user", rules)
    for _ in range(2):  # worked out, then remembered
        assert access.allowed(principal, "write", topic) is expected


def test_a_remembered_answer_depends_on_the_rules_not_on_the_name(access: Access) -> None:
    assert access.allowed(Principal("p", "user", ("a",)), "read", "a")
    assert not access.allowed(Principal("p", "user", ("b",)), "read", "a")
    assert not access.allowed(Principal("p", "writer", ("a",)), "read", "a")


def test_remembered_answers_are_bounded(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "MAX_CACHED_ANSWERS", 10)
    principal = Principal("p", "user", ("t*",))
    for number in range(35):
        assert access.allowed(principal, "read", f"t{number}")
        assert len(access._answers) <= 10
    assert access._answers, "nothing is remembered"
    access._answers.clear()
    assert access.allowed(principal, "read", "t" * 65_535)
    assert not access._answers, "a text that is no topic name must not fill the memory"


def test_a_hostile_pattern_is_answered_quickly(access: Access) -> None:
    principal = Principal("p", "user", ("*a" * 100 + "b",))
    assert not access.allowed(principal, "read", "a" * 65_000)
