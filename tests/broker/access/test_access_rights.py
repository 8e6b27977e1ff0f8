"""What a principal may do: roles, topic rules, and the answers that are remembered."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
from kit.logins import authenticate

from penstock.broker.access import access as access_module
from penstock.broker.access.access import ALL_TOPICS, Access, Principal
from penstock.broker.access.rights import ROLE_ACTIONS, Action
from penstock.broker.errors import BrokerError, Code
from penstock.log.metadata.store import MetadataStore
from penstock.server.config.keys import Role


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
    assert set(ROLE_ACTIONS) == set(get_args(Role))


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


# ---- the last key that may manage keys ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """A key as the configuration gives it."""

    name: str
    role: str
    topics: tuple[str, ...] = ALL_TOPICS
    secret: str | None = "secret"
    hash: str | None = None


@pytest.mark.parametrize(
    ("configured", "others", "is_last"),
    [
        ([], [], True),
        ([], [("user", ALL_TOPICS), ("admin", ("a.*",))], True),
        ([], [("admin", ALL_TOPICS)], False),
        ([Given("c", "admin")], [], False),
        ([Given("c", "admin", ("a.*",)), Given("d", "writer")], [], True),
    ],
)
def test_the_last_admin_key_is_revoked_by_force_only(
    tmp_path: Path,
    configured: list[Given],
    others: list[tuple[str, tuple[str, ...]]],
    is_last: bool,
) -> None:
    metadata = MetadataStore(str(tmp_path / "metadata.db"))
    nobody = Principal("anonymous", "nobody")
    # The development key is no help: it ends at the next start.
    access = Access(metadata, configured, development_key=True, anonymous=nobody)
    secret = access.create_key("ops", "admin")
    for number, (role, topics) in enumerate(others):
        access.create_key(f"other-{number}", role, topics)
        access.create_key(f"gone-{number}", "admin")
        access.revoke_key(f"gone-{number}")
    if is_last:
        with pytest.raises(BrokerError, match=r"'ops' is the last .* --force") as caught:
            access.revoke_key("ops")
        assert caught.value.code is Code.LAST_ADMIN_KEY
        assert authenticate(access, secret) is not None
    access.revoke_key("ops", force=is_last)
    assert authenticate(access, secret) is None
    metadata.close()
