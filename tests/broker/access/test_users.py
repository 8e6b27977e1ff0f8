"""Users: logins with passwords, roles, what changes do to principals that are logged in, and limits."""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.slow_hashes import SECRET, SlowHashes

from penstock.broker.access import keys
from penstock.broker.access.access import Access, Principal
from penstock.broker.access.accounts import Accounts
from penstock.broker.access.rights import Operation
from penstock.broker.access.slow_logins import LoginQueue, SlowLogin
from penstock.broker.access.topic_rules import TopicRule
from penstock.broker.access.user_table import USERS
from penstock.broker.errors import BrokerError, Code
from penstock.log.metadata.store import MetadataStore
from penstock.log.records import Put
from penstock.server.config.keys import KeyConfig

NOBODY = Principal("anonymous", "nobody")
OPS = Principal("ops", "admin")


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


@pytest.fixture
def metadata(database: str) -> Iterator[MetadataStore]:
    store = MetadataStore(database)
    yield store
    store.close()


def opened(metadata: MetadataStore | None, *configured: KeyConfig) -> Access:
    ticks = count(1_000_000)
    return Access(
        metadata,
        configured,
        development_key=False,
        anonymous=NOBODY,
        clock_us=lambda: next(ticks),
    )


@pytest.fixture
def access(metadata: MetadataStore) -> Iterator[Access]:
    access = opened(metadata)
    yield access
    access.close()


def accounts_of(access: Access, users: int = 100, rules: int = 100) -> Accounts:
    return Accounts(access, lambda: users, lambda: rules)


@pytest.fixture
def accounts(access: Access) -> Accounts:
    accounts = accounts_of(access)
    accounts.create_user(OPS, "root", "root-pw", ["admin"])
    return accounts


def log_in(access: Access, name: str, password: str, address: str = "here") -> Principal | None:
    answered = threading.Event()
    answers: list[Principal | None] = []

    def done(principal: Principal | None) -> None:
        answers.append(principal)
        answered.set()

    access.login_as(name, password, done, address=address)
    assert answered.wait(HANG_S), "the login was never answered"
    return answers[0]


def logged_in(access: Access, name: str, password: str) -> Principal:
    found = log_in(access, name, password)
    assert found is not None
    return found


def code_of(call: Callable[[], object]) -> tuple[Code, str]:
    with pytest.raises(BrokerError) as caught:
        call()
    return caught.value.code, str(caught.value)


# --- logins ---------------------------------------------------------------------------------------


def test_a_user_logs_in_with_the_password_alone(access: Access, accounts: Accounts) -> None:
    accounts.create_user(OPS, "al", "pw", ["reader"])
    assert logged_in(access, "al", "pw").name == "al"
    for name, password in (("al", "PW"), ("al", ""), ("root", "pw"), ("", "pw"), ("bo", "pw")):
        assert log_in(access, name, password) is None


def test_users_survive_a_restart(
    access: Access, accounts: Accounts, metadata: MetadataStore
) -> None:
    accounts.create_user(OPS, "al", "pw", ["reader", "writer"])
    again = opened(metadata)
    assert again.has_stored_logins and again.has_logins
    assert logged_in(again, "al", "pw").role == "user"
    assert again.users.get("al").roles == ("writer", "reader")
    again.close()


def test_the_second_login_needs_no_slow_hash(
    access: Access, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the right password nor the wrong one that was tried."""
    assert log_in(access, "root", "wrong") is None
    first = logged_in(access, "root", "root-pw")

    def fails(key: str, text: str) -> bool:
        raise AssertionError("hashed again")

    monkeypatch.setattr(keys, "matches_slow_hash", fails)
    assert logged_in(access, "root", "root-pw") == first
    assert log_in(access, "root", "wrong") is None


def test_an_unknown_name_costs_a_slow_hash_too(
    access: Access, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the time of a refusal does not tell which users there are."""
    tried: list[str] = []
    real = keys.matches_slow_hash

    def noted(key: str, text: str) -> bool:
        tried.append(key)
        return real(key, text)

    monkeypatch.setattr(keys, "matches_slow_hash", noted)
    assert log_in(access, "nobody-of-this-name", "") is None
    assert tried == [""]


def test_a_name_that_no_user_can_have_is_not_remembered(
    access: Access, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer may send 64 KiB of it, with every login another one."""
    noted: list[str | None] = []
    queue = LoginQueue.tried

    def tried(self: LoginQueue, login: SlowLogin, *, right: bool, guessed: bool = True) -> None:
        noted.append(login.user)
        queue(self, login, right=right, guessed=guessed)

    monkeypatch.setattr(LoginQueue, "tried", tried)
    assert log_in(access, "x" * 101, "pw") is None
    assert log_in(access, "x" * 100, "pw") is None
    assert noted == ["x" * 100]


def test_a_hash_that_cannot_be_computed_is_no_wrong_password(
    access: Access, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(key: str, text: str) -> bool:
        raise keys.SlowHashFailed("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(keys, "matches_slow_hash", fails)
        assert log_in(access, "root", "root-pw") is None
    assert log_in(access, "root", "root-pw") is not None


def test_a_key_logs_in_with_its_name_or_none(access: Access, accounts: Accounts) -> None:
    secret = access.create_key("app", "writer")
    assert logged_in(access, "app", secret).name == "app"
    assert logged_in(access, "", secret).name == "app"
    assert log_in(access, "root", secret) is None
    assert log_in(access, "app", "root-pw") is None


def test_a_hashed_key_of_the_configuration_logs_in_with_its_name(
    metadata: MetadataStore,
) -> None:
    hashed = KeyConfig(name="person", role="reader", hash=keys.hash_slowly(SECRET))
    access = opened(metadata, hashed)
    for has_users in (False, True):
        assert logged_in(access, "person", SECRET).role == "reader"
        assert log_in(access, "other", SECRET) is None
        if not has_users:
            accounts_of(access).create_user(OPS, "al", "pw", [])
    access.close()


def test_names_belong_to_a_user_or_to_a_key(access: Access, accounts: Accounts) -> None:
    access.create_key("app", "writer")
    assert code_of(lambda: accounts.create_user(OPS, "app", "pw", []))[0] is Code.USER_EXISTS
    assert code_of(lambda: access.create_key("root", "reader"))[0] is Code.KEY_EXISTS


def test_no_hash_of_a_password_is_shown(access: Access, accounts: Accounts) -> None:
    record = access.users.get("root")
    assert record.hash.startswith(keys.ARGON2_PREFIX)
    assert record.hash not in repr(record) and record.hash not in repr(access.users.all())


# --- whose turn it is -----------------------------------------------------------------------------


def test_a_storm_on_one_user_keeps_nobody_out(
    access: Access, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one address: a login of another address has the next turn. Also of the same user."""
    accounts.create_user(OPS, "al", "pw", [])
    hashes = SlowHashes()
    monkeypatch.setattr(keys, "matches_slow_hash", hashes)
    for number in range(20):
        access.login_as("al", f"wrong-{number}", lambda _: None, address="storm")
    assert hashes.begun.wait(HANG_S)
    answered = threading.Event()
    access.login_as("al", SECRET, lambda _: answered.set(), address="home")
    hashes.let_go(2)
    assert answered.wait(HANG_S)
    assert hashes.tried[:2] == ["wrong-0", SECRET]
    hashes.let_go(100)


def _waiting(user: str, address: str) -> SlowLogin:
    return SlowLogin(f"{user}@{address}", b"", lambda _: None, lambda: True, address, user)


def test_a_user_with_wrong_passwords_comes_after_the_others() -> None:
    """Wherever the wrong ones came from; but not where the user has logged in before."""
    queue = LoginQueue()
    queue.tried(_waiting("al", "home"), right=True)
    queue.tried(_waiting("al", "storm-1"), right=False)
    for login in (("al", "storm-2"), ("al", "storm-3"), ("bo", "desk"), ("al", "home")):
        queue.put(_waiting(*login))
    found = [queue.take() for _ in range(4)]
    assert [one.key for one in found if one is not None] == [
        "bo@desk",
        "al@home",
        "al@storm-2",
        "al@storm-3",
    ]


def test_a_right_password_ends_the_suspicion() -> None:
    queue = LoginQueue()
    queue.tried(_waiting("al", "storm"), right=False)
    queue.tried(_waiting("al", "home"), right=True)
    queue.put(_waiting("al", "new"))
    queue.put(_waiting("bo", "desk"))
    first = queue.take()
    assert first is not None and first.key == "al@new"


# --- changes at once ------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["disable", "delete", "password"])
def test_a_change_ends_what_open_connections_may_do(
    access: Access, accounts: Accounts, change: str
) -> None:
    accounts.create_user(OPS, "al", "pw", ["writer"])
    al = logged_in(access, "al", "pw")
    assert access.still_valid(al) and access.permits(al, Operation.PUBLISH, "t")
    before = access.version
    if change == "disable":
        accounts.update_user(OPS, "al", enabled=False)
    elif change == "delete":
        accounts.delete_user(OPS, "al")
    else:
        accounts.set_password(OPS, "al", "new")
    assert access.version > before, "what was granted before is kept until this grows"
    assert not access.still_valid(al) and not access.has_rights(al)
    assert not access.permits(al, Operation.PUBLISH, "t")
    assert {"disable": "disabled", "delete": "deleted", "password": "another password"}[
        change
    ] in access.why_invalid(al)
    assert log_in(access, "al", "pw") is None


def test_an_enabled_user_goes_on(access: Access, accounts: Accounts) -> None:
    accounts.create_user(OPS, "al", "pw", ["writer"])
    al = logged_in(access, "al", "pw")
    accounts.update_user(OPS, "al", enabled=False)
    accounts.update_user(OPS, "al", enabled=True)
    assert access.still_valid(al) and access.permits(al, Operation.PUBLISH, "t")


def test_a_new_user_of_the_same_name_is_another_one(access: Access, accounts: Accounts) -> None:
    accounts.create_user(OPS, "al", "pw", ["writer"])
    al = logged_in(access, "al", "pw")
    accounts.delete_user(OPS, "al")
    accounts.create_user(OPS, "al", "pw", ["admin"])
    assert not access.still_valid(al) and not access.permits(al, Operation.PUBLISH, "t")


def test_roles_take_effect_on_open_connections(access: Access, accounts: Accounts) -> None:
    accounts.create_user(OPS, "al", "pw", [])
    al = logged_in(access, "al", "pw")
    for roles, may_write, may_read, may_admin in (
        ([], False, False, False),
        (["guest"], False, False, False),
        (["writer"], True, False, False),
        (["reader"], False, True, False),
        (["reader", "writer"], True, True, False),
        (["guest", "admin"], True, True, True),
    ):
        before = access.version
        accounts.update_user(OPS, "al", roles)
        assert access.version > before and access.still_valid(al)
        assert access.permits(al, Operation.PUBLISH, "t") is may_write
        assert access.permits(al, Operation.READ_RECORDS, "t") is may_read
        assert access.permits(al, Operation.CREATE_USER) is may_admin
        assert access.has_rights(al) is (may_write or may_read)
        assert not access.permits(al, Operation.PUBLISH, "_audit")


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "password", "roles", "words"),
    [
        ("", "pw", [], "username and password are required"),
        ("bo", "", [], "username and password are required"),
        ("bo", "x" * 1025, [], "a password has at most 1024 bytes"),
        ("b\no", "pw", [], "a user needs a name"),
        ("b" * 101, "pw", [], "a user needs a name"),
        ("bo", "pw", ["king"], "role 'king' is unknown; use admin, writer, reader, guest"),
    ],
)
def test_a_bad_user_is_refused(
    accounts: Accounts, name: str, password: str, roles: list[str], words: str
) -> None:
    code, text = code_of(lambda: accounts.create_user(OPS, name, password, roles))
    assert code is Code.INVALID_REQUEST and text.startswith(words)


def test_a_user_is_there_once(accounts: Accounts) -> None:
    code, text = code_of(lambda: accounts.create_user(OPS, "root", "pw", []))
    assert (code, text) == (Code.USER_EXISTS, 'user "root" already exists')


def test_an_unknown_user_cannot_be_changed(accounts: Accounts) -> None:
    for call in (
        lambda: accounts.update_user(OPS, "bo", []),
        lambda: accounts.delete_user(OPS, "bo"),
        lambda: accounts.set_password(OPS, "bo", "pw"),
    ):
        assert code_of(call) == (Code.UNKNOWN_USER, 'user "bo" not found')


def test_nobody_deletes_the_own_account(access: Access, accounts: Accounts) -> None:
    accounts.create_user(OPS, "other", "pw", ["admin"])
    root = logged_in(access, "root", "root-pw")
    code, text = code_of(lambda: accounts.delete_user(root, "root"))
    assert (code, text) == (Code.INVALID_REQUEST, "cannot delete your own account")


def test_the_last_admin_stays(access: Access, accounts: Accounts) -> None:
    for call in (
        lambda: accounts.delete_user(OPS, "root"),
        lambda: accounts.update_user(OPS, "root", enabled=False),
        lambda: accounts.update_user(OPS, "root", ["writer"]),
    ):
        assert code_of(call)[0] is Code.LAST_ADMIN_KEY
    access.create_key("keeper", "admin")
    accounts.update_user(OPS, "root", ["writer"])
    assert code_of(lambda: access.revoke_key("keeper"))[0] is Code.LAST_ADMIN_KEY
    accounts.update_user(OPS, "root", ["admin"])
    access.revoke_key("keeper")


def test_users_have_a_limit(access: Access) -> None:
    accounts = accounts_of(access, users=1)
    accounts.create_user(OPS, "one", "pw", [])
    code, text = code_of(lambda: accounts.create_user(OPS, "two", "pw", []))
    assert code is Code.LIMIT_REACHED and "limits.users = 1" in text


def test_an_unreadable_record_keeps_one_user_out(
    metadata: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened(metadata)
    accounts_of(first).create_user(OPS, "al", "pw", [])
    first.close()
    metadata.change([Put(USERS, "bo", b"{")]).result(HANG_S)
    access = opened(metadata)
    assert list(access.users.all()) == ["al"]
    assert "user 'bo' has an unreadable record" in caplog.text
    access.close()


def test_a_server_without_metadata_stores_no_users() -> None:
    accounts = accounts_of(opened(None))
    assert code_of(lambda: accounts.create_user(OPS, "al", "pw", []))[0] is Code.INVALID_REQUEST
    assert code_of(lambda: accounts.set_rule(OPS, "t", TopicRule()))[0] is Code.INVALID_REQUEST
