"""Topic rules: what they grant beside roles, to whom, and that they take nothing away."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.accounts import Accounts
from penstock.broker.access.rights import Operation
from penstock.broker.access.topic_rules import MAX_RULE_USERS, RULES, TopicRule
from penstock.broker.errors import BrokerError, Code
from penstock.log.metadata.store import MetadataStore
from penstock.log.records import Put

NOBODY = Principal("anonymous", "nobody")
OPS = Principal("ops", "admin")
GUEST = Principal("visitor", "guest")
LIMITED = Principal("app", "user", ("app.*",))


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[MetadataStore]:
    store = MetadataStore(str(tmp_path / "metadata.db"))
    yield store
    store.close()


def opened(metadata: MetadataStore) -> Access:
    return Access(metadata, (), development_key=False, anonymous=NOBODY)


@pytest.fixture
def access(metadata: MetadataStore) -> Access:
    return opened(metadata)


@pytest.fixture
def accounts(access: Access) -> Accounts:
    return Accounts(access, lambda: 100, lambda: 5)


def may(access: Access, who: Principal, topic: str) -> tuple[bool, bool, bool]:
    operations = (Operation.READ_RECORDS, Operation.PUBLISH, Operation.DELETE_TOPIC)
    read, write, admin = (access.permits(who, operation, topic) for operation in operations)
    return read, write, admin


@pytest.mark.parametrize(
    ("rule", "granted"),
    [
        (TopicRule(public=True), {"visitor", "app", "reader"}),
        (TopicRule(users=("visitor",)), {"visitor"}),
        (TopicRule(roles=("guest",)), {"visitor"}),
        (TopicRule(roles=("writer",)), {"app"}),
        (TopicRule(roles=("reader",)), {"app", "reader"}),
        (TopicRule(users=("somebody",), roles=("admin",)), set()),
        (TopicRule(), set()),
    ],
)
@pytest.mark.parametrize("name", ["news", "n*", "new?", "[n]ews"])
def test_a_rule_grants_reading_and_writing(
    access: Access, accounts: Accounts, name: str, rule: TopicRule, granted: set[str]
) -> None:
    accounts.set_rule(OPS, name, rule)
    reader = Principal("reader", "reader", ("other",))
    for who in (GUEST, LIMITED, reader):
        grants = who.name in granted
        assert may(access, who, "news") == (grants, grants, False)
        assert access.shows(who, "news") is grants
        assert may(access, who, "old") == (False, False, False)
    assert may(access, NOBODY, "news") == (False, False, False), "who has not logged in"
    assert may(access, OPS, "news") == (True, True, True)
    assert access.has_rights(GUEST) is ("visitor" in granted)
    assert access.permits(GUEST, Operation.DESCRIBE_CLUSTER) is ("visitor" in granted)


def test_a_rule_takes_nothing_away(access: Access, accounts: Accounts) -> None:
    before = may(access, LIMITED, "app.orders")
    accounts.set_rule(OPS, "app.orders", TopicRule(users=("visitor",)))
    assert may(access, LIMITED, "app.orders") == before == (True, True, False)


def test_no_rule_opens_internal_topics_or_the_server(access: Access, accounts: Accounts) -> None:
    accounts.set_rule(OPS, "*", TopicRule(public=True))
    assert may(access, GUEST, "_audit") == (False, False, False)
    assert not access.permits(GUEST, Operation.CREATE_KEY)
    assert not access.permits(GUEST, Operation.DELETE_GROUP, "g", ["t"])


def test_changes_take_effect_at_once(access: Access, accounts: Accounts) -> None:
    versions = [access.version]
    assert may(access, GUEST, "t")[0] is False
    accounts.set_rule(OPS, "t", TopicRule(public=True))
    versions.append(access.version)
    assert may(access, GUEST, "t")[0] is True
    accounts.set_rule(OPS, "t", TopicRule(users=("other",)))
    versions.append(access.version)
    assert may(access, GUEST, "t")[0] is False
    accounts.set_rule(OPS, "t*", TopicRule(users=("visitor",)))
    versions.append(access.version)
    assert may(access, GUEST, "t")[0] is True
    assert accounts.delete_rule(OPS, "t*") is True
    versions.append(access.version)
    assert may(access, GUEST, "t")[0] is False
    assert accounts.delete_rule(OPS, "t*") is False
    assert versions == sorted(set(versions)), "grows with every change"


def test_rules_survive_a_restart(
    access: Access, accounts: Accounts, metadata: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    rule = TopicRule(True, ("al", "bo"), ("writer", "guest"))
    accounts.set_rule(OPS, "b", rule)
    accounts.set_rule(OPS, "a", TopicRule())
    metadata.change([Put(RULES, "c", b"[]")]).result(HANG_S)
    again = opened(metadata)
    assert list(again.rules.all()) == ["a", "b"]
    assert again.rules.get("b") == rule
    assert "the rule of topic 'c' has an unreadable record" in caplog.text


@pytest.mark.parametrize(
    ("name", "rule", "code"),
    [
        ("", TopicRule(), Code.INVALID_REQUEST),
        ("x" * 250, TopicRule(), Code.INVALID_REQUEST),
        ("_audit", TopicRule(), Code.INVALID_REQUEST),
        ("t", TopicRule(roles=("king",)), Code.INVALID_REQUEST),
        ("t", TopicRule(users=("",)), Code.INVALID_REQUEST),
        ("t", TopicRule(users=("u",) * (MAX_RULE_USERS + 1)), Code.INVALID_REQUEST),
    ],
)
def test_a_bad_rule_is_refused(accounts: Accounts, name: str, rule: TopicRule, code: Code) -> None:
    assert _code(lambda: accounts.set_rule(OPS, name, rule)) is code


def test_rules_have_a_limit(access: Access, accounts: Accounts) -> None:
    for number in range(5):
        accounts.set_rule(OPS, f"t{number}", TopicRule())
    assert _code(lambda: accounts.set_rule(OPS, "t5", TopicRule())) is Code.LIMIT_REACHED
    accounts.set_rule(OPS, "t4", TopicRule(public=True))
    assert len(access.rules) == 5


def _code(call: Callable[[], object]) -> Code:
    with pytest.raises(BrokerError) as caught:
        call()
    return caught.value.code
