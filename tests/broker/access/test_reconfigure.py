"""Other keys of the configuration while the server runs: who is out, and when."""

import pytest
from broker.access.test_access import Given, opened
from kit.logins import authenticate

from penstock.broker.access import keys
from penstock.broker.errors import BrokerError


def test_other_keys_of_the_configuration() -> None:
    """Who came with a key that is gone, or has other rights now, is out at once."""
    access = opened(
        None, Given("kept", secret="a"), Given("gone", secret="b"), Given("changed", secret="c")
    )
    before = {
        name: authenticate(access, secret)
        for name, secret in (("kept", "a"), ("gone", "b"), ("changed", "c"))
    }
    access.reconfigure(
        [
            Given("kept", secret="a"),
            Given("changed", "reader", secret="c"),
            Given("new", secret="d"),
        ]
    )
    valid = {name for name, who in before.items() if who is not None and access.still_valid(who)}
    assert valid == {"kept"}
    found = {secret: authenticate(access, secret) for secret in "abcd"}
    assert {secret: who.name if who else None for secret, who in found.items()} == {
        "a": "kept", "b": None, "c": "changed", "d": "new",
    }  # fmt: skip
    assert [key.name for key in access.list_keys()] == ["changed", "kept", "new"]
    access.reconfigure([Given("kept", secret="a"), Given("gone", secret="b")])
    gone = before["gone"]
    assert gone is not None and access.still_valid(gone)


def test_a_broken_hash_leaves_the_keys_as_they_are() -> None:
    access = opened(None, Given("kept", secret="a"))
    with pytest.raises(BrokerError, match="is no argon2id hash"):
        access.reconfigure([Given("new", secret="b"), Given("bad", hash="x")])
    assert authenticate(access, "a") is not None
    assert authenticate(access, "b") is None


def test_a_new_secret_ends_what_was_opened_with_the_old_one() -> None:
    access = opened(None, Given("app", secret="old"))
    old = authenticate(access, "old")
    assert old is not None and access.still_valid(old)
    access.reconfigure([Given("app", secret="new")])
    assert authenticate(access, "old") is None
    assert not access.still_valid(old)
    new = authenticate(access, "new")
    assert new is not None and access.still_valid(new)
    # The old secret comes back, and with it who had it.
    access.reconfigure([Given("app", secret="old")])
    assert access.still_valid(old) and not access.still_valid(new)


def test_a_slow_login_under_way_does_not_outlive_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is read again while argon2 works on the old secret."""
    access = opened(None, Given("app", hash=keys.hash_slowly("old")))
    matches = keys.matches_slow_hash

    def reread_meanwhile(key: str, text: str) -> bool:
        found = matches(key, text)
        monkeypatch.setattr(keys, "matches_slow_hash", matches)
        access.reconfigure([Given("app", hash=keys.hash_slowly("new"))])
        return found

    monkeypatch.setattr(keys, "matches_slow_hash", reread_meanwhile)
    assert authenticate(access, "old") is None
    assert authenticate(access, "old") is None
    assert authenticate(access, "new") is not None
