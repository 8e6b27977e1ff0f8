"""Grants: what was allowed is remembered until a key changes, and nothing else is."""

from pathlib import Path

import pytest
from broker.bench import Bench

from penstock.broker.access import grants
from penstock.broker.access.access import Principal
from penstock.broker.access.grants import Grants
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError
from penstock.names import MAX_NAME_BYTES

WRITER = Principal("writer", "writer", ("orders.*",))
PUBLISH = Operation.PUBLISH


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(str(tmp_path / "data"))


def test_only_what_was_noted_is_granted(bench: Bench) -> None:
    kept = Grants(bench.access)
    kept.note(WRITER, PUBLISH, "orders.new", bench.access.version)
    assert kept.has(WRITER, PUBLISH, "orders.new")
    assert not kept.has(WRITER, PUBLISH, "orders.old")
    assert not kept.has(WRITER, Operation.READ_RECORDS, "orders.new")
    assert not kept.has(Principal("writer", "writer", ("orders.*",)), PUBLISH, "orders.new")
    bench.close()


def test_a_change_of_keys_forgets_all(bench: Bench) -> None:
    kept = Grants(bench.access)
    before = bench.access.version
    kept.note(WRITER, PUBLISH, "orders.new", before)
    bench.access.create_key("another", "reader", ("*",))
    assert not kept.has(WRITER, PUBLISH, "orders.new") and not kept.has_any(WRITER)
    # An answer that was asked for before the change is not kept after it.
    kept.note(WRITER, PUBLISH, "orders.new", before)
    assert not kept.has(WRITER, PUBLISH, "orders.new")
    bench.close()


def test_what_every_peer_may_do_makes_nobody_known(bench: Bench) -> None:
    kept = Grants(bench.access)
    nobody = Principal("anonymous", "nobody")
    for operation in (Operation.CHECK_HEALTH, Operation.LIST_TOPICS):
        kept.note(nobody, operation, "", bench.access.version)
        assert not kept.has(nobody, operation, "") and not kept.has_any(nobody)
    bench.close()


def test_memory_is_bounded(bench: Bench) -> None:
    kept = Grants(bench.access)
    kept.note(WRITER, PUBLISH, "x" * (MAX_NAME_BYTES + 1), bench.access.version)
    assert not kept.has(WRITER, PUBLISH, "x" * (MAX_NAME_BYTES + 1))
    for number in range(grants.MAX_GRANTS + 1):
        kept.note(WRITER, PUBLISH, f"orders.{number}", bench.access.version)
    assert kept.has(WRITER, PUBLISH, f"orders.{grants.MAX_GRANTS}")
    assert not kept.has(WRITER, PUBLISH, "orders.0")
    bench.close()


def test_a_revoked_key_is_refused_with_the_next_request(bench: Bench) -> None:
    secret = bench.access.create_key("billing", "writer", ("*",))
    found: list[Principal | None] = []
    bench.access.login(secret, found.append)
    [principal] = found
    assert principal is not None
    for _ in range(2):
        bench.broker.require(principal, PUBLISH, "orders")
    bench.access.revoke_key("billing")
    with pytest.raises(BrokerError, match="revoked"):
        bench.broker.require(principal, PUBLISH, "orders")
    bench.close()
