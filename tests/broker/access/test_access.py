"""Logins and the life of API keys; what they may do is in test_access_rights.py."""

import ast
import hmac
import inspect
import logging
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.logins import authenticate

from penstock.broker.access import key_ring, key_table, keys
from penstock.broker.access.access import (
    ALL_TOPICS,
    DEVELOPMENT_KEY,
    Access,
    KeyInfo,
    Principal,
)
from penstock.broker.errors import BrokerError, Code
from penstock.log.metadata.store import MetadataStore
from penstock.log.records import Put
from penstock.server.config.keys import KeyConfig

ANONYMOUS = Principal("anonymous", "reader", ("public.*",))
SECRET = "correct horse"


@dataclass(frozen=True, slots=True)
class Given:
    """A key as the configuration gives it."""

    name: str
    role: str = "user"
    topics: tuple[str, ...] = ALL_TOPICS
    secret: str | None = None
    hash: str | None = field(default=None)


def opened(
    metadata: MetadataStore | None,
    *configured: Given | KeyConfig,
    development_key: bool = False,
    post: Callable[[Callable[[], None]], object] = lambda function: function(),
) -> Access:
    ticks = count(1)
    return Access(
        metadata,
        configured,
        development_key=development_key,
        anonymous=ANONYMOUS,
        post=post,
        clock_us=lambda: next(ticks),
    )


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


@pytest.fixture
def metadata(database: str) -> Iterator[MetadataStore]:
    store = MetadataStore(database)
    yield store
    store.close()


@pytest.fixture
def access(metadata: MetadataStore) -> Access:
    return opened(metadata)


@pytest.fixture(scope="module")
def slow_hash() -> str:
    return keys.hash_slowly(SECRET)


# ---- logging in ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tried", ["", DEVELOPMENT_KEY, "anonymous", "x" * 65_535, "\ud800"])
def test_without_keys_nobody_logs_in(access: Access, tried: str) -> None:
    assert authenticate(access, tried) is None


def test_the_development_key_only_when_allowed() -> None:
    assert authenticate(opened(None, development_key=False), DEVELOPMENT_KEY) is None
    principal = authenticate(opened(None, development_key=True), DEVELOPMENT_KEY)
    assert principal == Principal("dev-key", "admin")
    assert authenticate(opened(None, development_key=True), "dev-kez") is None


def test_a_configured_key() -> None:
    key = KeyConfig(name="billing", role="writer", topics=("orders.*",), secret=SECRET)
    access = opened(None, key)
    principal = authenticate(access, SECRET)
    assert principal == Principal("billing", "writer", ("orders.*",))
    assert access.still_valid(principal)
    for wrong in ("", SECRET[:-1], SECRET + " ", SECRET.upper(), "billing"):
        assert authenticate(access, wrong) is None


def test_the_empty_key_is_an_ordinary_key() -> None:
    access = opened(None, Given("empty", secret=""), Given("other", secret="other"))
    assert authenticate(access, "") == Principal("empty", "user", ALL_TOPICS)
    assert authenticate(opened(None, Given("other", secret="other")), "") is None


def test_a_configured_hash(slow_hash: str) -> None:
    access = opened(None, Given("person", hash=slow_hash), Given("plain", secret="plain"))
    assert authenticate(access, SECRET) == Principal("person", "user", ALL_TOPICS)
    assert authenticate(access, SECRET + "x") is None
    assert authenticate(access, "plain") == Principal("plain", "user", ALL_TOPICS)


@pytest.mark.parametrize("text", ["abc", "", "$argon2id$", None])
def test_a_hash_that_cannot_be_used_is_told_at_once(text: str | None) -> None:
    with pytest.raises(BrokerError, match="hash of API key 'p'") as caught:
        opened(None, Given("p", hash=text))
    assert caught.value.code is Code.INVALID_SETTINGS


def test_a_stored_key(access: Access) -> None:
    secret = access.create_key("billing", "writer", ["orders.*"])
    principal = authenticate(access, secret)
    assert principal is not None
    assert (principal.name, principal.role, principal.rules) == ("billing", "writer", ("orders.*",))
    assert principal.key_id is not None and access.still_valid(principal)
    assert authenticate(access, secret[:-1]) is None
    assert authenticate(access, secret.upper()) is None


def test_each_of_many_keys_finds_its_own_principal(metadata: MetadataStore, slow_hash: str) -> None:
    given = [Given(f"given-{number}", secret=f"secret-{number}") for number in range(5)]
    access = opened(metadata, *given, Given("slow", hash=slow_hash))
    secrets = {
        f"stored-{number}": access.create_key(f"stored-{number}", "user") for number in range(5)
    }
    secrets |= {key.name: key.secret or "" for key in given} | {"slow": SECRET}
    found = {name: authenticate(access, secret) for name, secret in secrets.items()}
    assert {name: who.name for name, who in found.items() if who} == {
        name: name for name in secrets
    }


# ---- where the slow hash runs --------------------------------------------------------------------


@pytest.fixture
def slow_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which a slow hash was computed."""
    calls: list[str] = []
    really = keys.matches_slow_hash

    def watched(key: str, text: str) -> bool:
        calls.append(threading.current_thread().name)
        return really(key, text)

    monkeypatch.setattr(keys, "matches_slow_hash", watched)
    return calls


def wait_for_login(access: Access, key: str) -> Principal | None:
    answers: list[Principal | None] = []
    done = threading.Event()

    def take(principal: Principal | None) -> None:
        answers.append(principal)
        done.set()

    access.login(key, take)
    assert done.wait(HANG_S)
    (answer,) = answers
    return answer


@pytest.mark.parametrize(("key", "name"), [(SECRET, "person"), ("wrong", None)])
def test_a_slow_hash_runs_once_and_in_a_thread(
    slow_hash: str, slow_calls: list[str], key: str, name: str | None
) -> None:
    posted: list[Callable[[], None]] = []

    def post(function: Callable[[], None]) -> None:
        posted.append(function)
        function()

    access = opened(None, Given("person", hash=slow_hash), post=post)
    for _ in range(3):
        principal = wait_for_login(access, key)
        assert (principal.name if principal else None) == name
    assert len(slow_calls) == 1, "the second time the answer is known"
    assert slow_calls[0].startswith("penstock-login")
    assert len(posted) == 1, "known answers come at once"
    access.close()


def test_a_fast_answer_needs_no_thread(
    access: Access, slow_calls: list[str], metadata: MetadataStore
) -> None:
    secret = access.create_key("a", "user")
    before = threading.active_count()
    answers: list[Principal | None] = []
    access.login(secret, answers.append)
    access.login("wrong", answers.append)
    assert [who.name if who else None for who in answers] == ["a", None]
    assert threading.active_count() == before and slow_calls == []


def test_every_slow_candidate_is_tried(slow_hash: str, slow_calls: list[str]) -> None:
    other = keys.hash_slowly("other")
    access = opened(None, Given("first", hash=slow_hash), Given("second", hash=other))
    assert authenticate(access, SECRET) == Principal("first", "user", ALL_TOPICS)
    assert len(slow_calls) == 2


def test_wrong_keys_are_remembered_within_bounds(
    slow_hash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ring, "MAX_KNOWN_WRONG", 2)
    monkeypatch.setattr(keys, "matches_slow_hash", lambda key, text: False)
    access = opened(None, Given("person", hash=slow_hash))
    for number in range(7):
        assert authenticate(access, f"wrong-{number}") is None
        assert len(access.ring._known_wrong) <= 2


def test_a_hash_that_fails_refuses_but_does_not_remember(
    slow_hash: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    access = opened(None, Given("person", hash=slow_hash))

    def fail(key: str, text: str) -> bool:
        raise keys.SlowHashFailed("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(keys, "matches_slow_hash", fail)
        assert wait_for_login(access, SECRET) is None
    assert "a login was refused" in caplog.text and SECRET not in caplog.text
    assert wait_for_login(access, SECRET) == Principal("person", "user", ALL_TOPICS)
    access.close()


def test_an_answer_for_a_loop_that_has_ended_is_dropped(slow_hash: str) -> None:
    ended = threading.Event()

    def post(function: Callable[[], None]) -> None:
        ended.set()
        raise RuntimeError("Event loop is closed")

    access = opened(None, Given("person", hash=slow_hash), post=post)
    answers: list[Principal | None] = []
    access.login(SECRET, answers.append)
    assert ended.wait(HANG_S)
    access.close()
    assert answers == []


# ---- comparison ----------------------------------------------------------------------------------


def test_every_candidate_is_compared_whatever_matches(
    metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = opened(metadata, Given("given", secret="given"), development_key=True)
    secrets = [access.create_key(f"stored-{number}", "user") for number in range(3)]
    compared: list[tuple[bytes, bytes]] = []
    really = hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return really(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    for key in (*secrets, "given", DEVELOPMENT_KEY, "wrong", ""):
        compared.clear()
        authenticate(access, key)
        assert len(compared) == 5, "two fixed and three stored"
        assert all(len(one) == len(other) == keys.DIGEST_BYTES for one, other in compared)


def test_the_loop_over_candidates_cannot_end_early() -> None:
    source = inspect.getsource(key_ring.KeyRing.find)
    tree = ast.parse(textwrap.dedent(source))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    assert loops
    for loop in loops:
        early = (ast.Break, ast.Return, ast.Raise)
        assert not [node for node in ast.walk(loop) if isinstance(node, early)]
    assert "keys.same(" in source and "==" not in source
    assert "hmac.compare_digest" in inspect.getsource(keys.same)


def test_principals_by_name(metadata: MetadataStore, slow_hash: str) -> None:
    access = opened(metadata, Given("given", secret="x"), Given("slow", hash=slow_hash))
    access.create_key("stored", "reader", ["a"])
    assert access.named("anonymous") == ANONYMOUS
    for name in ("given", "slow", "stored"):
        principal = access.named(name)
        assert principal is not None and principal.name == name
    access.revoke_key("stored")
    assert access.named("stored") is None
    assert access.named("nobody") is None


# ---- the life of a key ---------------------------------------------------------------------------


def test_keys_survive_a_restart(database: str) -> None:
    first = MetadataStore(database)
    access = opened(first)
    assert not access.has_stored_logins
    kept = access.create_key("kept", "writer", ["orders.*", "bills.*"])
    gone = access.create_key("gone", "admin")
    before = authenticate(access, kept)
    access.revoke_key("gone", force=True)
    listed = access.list_keys()
    first.close()

    second = MetadataStore(database)
    again = opened(second)
    assert again.has_stored_logins
    assert authenticate(again, kept) == before
    assert before is not None and again.still_valid(before)
    assert authenticate(again, gone) is None
    assert again.list_keys() == listed
    second.close()


def test_a_revoked_key_ends_on_open_connections(access: Access) -> None:
    secret = access.create_key("a", "user")
    other = access.create_key("b", "user")
    principal, stays = authenticate(access, secret), authenticate(access, other)
    assert principal is not None and stays is not None
    access.revoke_key("a")
    assert not access.still_valid(principal)
    assert authenticate(access, secret) is None
    assert access.still_valid(stays) and authenticate(access, other) == stays


def test_a_name_can_be_used_again_after_revocation(access: Access) -> None:
    old = access.create_key("a", "user")
    before = authenticate(access, old)
    access.revoke_key("a")
    new = access.create_key("a", "reader")
    after = authenticate(access, new)
    assert before is not None and after is not None
    assert not access.still_valid(before), "the old connection must not come back to life"
    assert access.still_valid(after)
    assert authenticate(access, old) is None
    assert [(key.name, key.role, key.revoked_us) for key in access.list_keys()] == [
        ("a", "reader", None)
    ]


def test_a_revocation_that_cannot_be_written_still_counts_here(
    access: Access, metadata: MetadataStore
) -> None:
    secret = access.create_key("a", "user")
    metadata.close()
    with pytest.raises(Exception, match="closed"):
        access.revoke_key("a")
    assert authenticate(access, secret) is None


def test_a_key_that_cannot_be_written_does_not_work(
    access: Access, metadata: MetadataStore
) -> None:
    metadata.close()
    with pytest.raises(Exception, match="closed"):
        access.create_key("a", "user")
    assert access.ring._stored == {}


def test_keys_are_listed_with_their_source(metadata: MetadataStore) -> None:
    access = opened(metadata, Given("m", "reader", ("x",), secret="secret"))
    access.create_key("z", "user")
    access.create_key("a", "admin", ["t"])
    access.revoke_key("a")
    assert access.list_keys() == [
        KeyInfo("a", "admin", ("t",), 2, 3, "stored"),
        KeyInfo("m", "reader", ("x",), None, None, "configuration"),
        KeyInfo("z", "user", ALL_TOPICS, 1, None, "stored"),
    ]


def test_names_are_unique(metadata: MetadataStore) -> None:
    access = opened(metadata, Given("given", secret="x"))
    access.create_key("a", "user")
    for name in ("a", "given"):
        with pytest.raises(BrokerError, match=f"named '{name}'") as caught:
            access.create_key(name, "user")
        assert caught.value.code is Code.KEY_EXISTS


@pytest.mark.parametrize(
    ("name", "code"),
    [("nobody", Code.UNKNOWN_KEY), ("given", Code.INVALID_REQUEST), ("gone", Code.UNKNOWN_KEY)],
)
def test_what_cannot_be_revoked(metadata: MetadataStore, name: str, code: Code) -> None:
    access = opened(metadata, Given("given", secret="x"))
    access.create_key("gone", "user")
    access.revoke_key("gone")
    with pytest.raises(BrokerError, match=f"'{name}'") as caught:
        access.revoke_key(name)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("name", "role", "topics", "text"),
    [
        ("", "user", ["a"], "a name of 1 to 100"),
        (" a", "user", ["a"], "a name of 1 to 100"),
        ("a\n", "user", ["a"], "a name of 1 to 100"),
        ("a\u202e", "user", ["a"], r"a name of 1 to 100.*: character 1 is U\+202E"),
        ("a" * 101, "user", ["a"], "a name of 1 to 100"),
        ("a", "root", ["a"], "role 'root' is unknown; use admin, user, writer, reader"),
        ("a", "user", [], "1 to 100 topic patterns"),
        ("a", "user", [""], "1 to 100 topic patterns"),
        ("a", "user", ["x" * 250], "1 to 100 topic patterns"),
        ("a", "user", ["x\0"], "1 to 100 topic patterns"),
        ("a", "user", ["x"] * 101, "1 to 100 topic patterns"),
    ],
)
def test_keys_that_make_no_sense(
    access: Access, name: str, role: str, topics: list[str], text: str
) -> None:
    with pytest.raises(BrokerError, match=text) as caught:
        access.create_key(name, role, topics)
    assert caught.value.code is Code.INVALID_REQUEST
    assert access.list_keys() == []


def test_a_server_without_metadata_stores_no_keys() -> None:
    access = opened(None)
    assert not access.has_stored_logins and access.list_keys() == []
    for call in (lambda: access.create_key("a", "user"), lambda: access.revoke_key("a")):
        with pytest.raises(BrokerError, match="stores no API keys"):
            call()


def test_the_number_of_keys_is_bounded(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_table, "MAX_ACTIVE_KEYS", 3)
    monkeypatch.setattr(key_table, "MAX_REVOKED_KEYS", 2)
    for number in range(3):
        access.create_key(f"k{number}", "user")
    with pytest.raises(BrokerError, match="3 at most; revoke one"):
        access.create_key("k3", "user")
    for number in range(3, 9):
        access.revoke_key(f"k{number - 3}")
        access.create_key(f"k{number}", "user")
    revoked = [key.name for key in access.list_keys() if key.revoked_us is not None]
    assert revoked == ["k4", "k5"], "the latest ones stay in the list"


def test_a_row_that_cannot_be_read_locks_out_only_itself(
    metadata: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    access = opened(metadata)
    bad, good = access.create_key("bad", "user"), access.create_key("good", "user")

    metadata.change((Put("keys", "bad", b'{"topics": 7}'),)).result(HANG_S)
    again = opened(metadata)
    assert authenticate(again, bad) is None
    assert authenticate(again, good) is not None
    assert "API key 'bad' has an unreadable record" in caplog.text


def test_logins_go_on_while_keys_change(access: Access) -> None:
    secret = access.create_key("steady", "user")
    stop = threading.Event()
    refused: list[int] = []

    def log_in() -> None:
        for attempt in range(100_000):
            if stop.is_set():
                return
            if authenticate(access, secret) is None:
                refused.append(attempt)

    thread = threading.Thread(target=log_in)
    thread.start()
    for number in range(20):
        access.create_key(f"k{number}", "user")
        access.revoke_key(f"k{number}")
    stop.set()
    thread.join()
    assert refused == []


# ---- secrecy -------------------------------------------------------------------------------------


def test_a_secret_is_seen_once_and_nowhere_else(
    metadata: MetadataStore,
    database: str,
    slow_hash: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    access = opened(metadata, Given("plain", secret="plain-secret"), Given("slow", hash=slow_hash))
    made = access.create_key("made", "user")
    principal = authenticate(access, made)
    assert authenticate(access, "wrong-secret") is None
    assert authenticate(access, SECRET) is not None
    row = key_table.KeyTable(metadata).rows()[0]
    with pytest.raises(BrokerError) as caught:
        access.create_key("made", "user")
    access.revoke_key("made")
    shown = [repr(access), repr(vars(access)), repr(vars(access.ring))]
    shown += [repr(principal), repr(row), repr(access.list_keys())]
    shown += [str(caught.value), repr(caught.value), caplog.text]
    for secret in (made, made[3:], "plain-secret", "wrong-secret", SECRET):
        assert not [text for text in shown if secret in text]
    for digest in (row.digest, row.salt):
        assert not [text for text in shown if repr(digest) in text or digest.hex() in text]
    metadata.close()
    for path in Path(database).parent.iterdir():
        content = path.read_bytes()
        assert made.encode() not in content and made[3:].encode() not in content


def test_a_created_key_with_the_development_key_on_is_warned_about(
    metadata: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    access = opened(metadata, development_key=True)
    access.create_key("a", "admin")
    assert "dev-key still works until the server restarts" in caplog.text
