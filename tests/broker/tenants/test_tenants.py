"""Tenants, namespaces and caches: where they come from, what they need, and what goes with them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.bench import ANYBODY, Bench

from penstock.broker.access.access import Principal
from penstock.broker.errors import BrokerError, Code
from penstock.broker.options import BrokerOptions
from penstock.broker.tenants.names import Kind
from penstock.broker.tenants.tenants import Row
from penstock.log.engine import Pending

CONFIGURED = ("conf", "conf2/n", "conf3/n/c")
OPTIONS = BrokerOptions(tenants=CONFIGURED, cache_topic="felix.cache", max_tenants=6)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"), OPTIONS)
    made.settle()
    yield made
    made.close()


def create(bench: Bench, kind: Kind, name: str, who: Principal = ANYBODY) -> None:
    change = bench.broker.tenants.create(who, kind, name)
    bench.settle()
    change.result(0)


def run(bench: Bench, work: Coroutine[Any, Any, None]) -> None:
    """Drives a coroutine that waits for nothing but what the bench lets happen."""

    async def drive() -> None:
        task = asyncio.ensure_future(work)
        while not task.done():
            bench.settle()
            await asyncio.sleep(0)
        await task

    asyncio.run(drive())


def delete(
    bench: Bench, kind: Kind, name: str, *, force: bool = False, who: Principal = ANYBODY
) -> None:
    run(bench, bench.broker.tenants.delete(who, kind, name, force=force))


def refused(call: Callable[[], object]) -> Code:
    with pytest.raises(BrokerError) as error:
        call()
    return error.value.code


def names(bench: Bench, kind: Kind) -> list[str]:
    return [row.name for row in bench.broker.tenants.rows(kind, lambda name: True)]


def test_names_come_from_the_configuration_and_from_what_is_in_them(bench: Bench) -> None:
    bench.broker.create_topic(ANYBODY, "made/by/others", 1)
    bench.broker.create_topic(ANYBODY, "no.stream", 1)
    bench.broker.create_topic(ANYBODY, "too/many/parts/here", 1)
    bench.settle()
    assert names(bench, Kind.TENANT) == ["conf", "conf2", "conf3", "made"]
    assert names(bench, Kind.NAMESPACE) == ["conf2/n", "conf3/n", "made/by"]
    assert names(bench, Kind.STREAM) == ["made/by/others"]
    assert names(bench, Kind.CACHE) == ["conf3/n/c"]
    for kind, name in ((Kind.TENANT, "made"), (Kind.NAMESPACE, "made/by"), (Kind.TENANT, "conf")):
        assert bench.broker.tenants.exists(name, kind)
    assert not bench.broker.tenants.exists("made/x", Kind.NAMESPACE)


def test_each_needs_what_it_is_in(bench: Bench) -> None:
    assert refused(lambda: create(bench, Kind.NAMESPACE, "a/n")) is Code.UNKNOWN_TENANT
    create(bench, Kind.TENANT, "a")
    assert refused(lambda: create(bench, Kind.CACHE, "a/n/c")) is Code.UNKNOWN_TENANT

    def stream() -> None:
        bench.broker.tenants.check_stream(ANYBODY, "a/n/s")

    assert refused(stream) is Code.UNKNOWN_TENANT
    create(bench, Kind.NAMESPACE, "a/n")
    create(bench, Kind.CACHE, "a/n/c")
    stream()
    assert bench.broker.tenants.has_cache("a/n/c")
    rows = bench.broker.tenants.rows(Kind.TENANT, lambda name: name.startswith("a"))
    assert rows == [Row("a", bench.clock.now_us, False, 1, 0, 1)]


@pytest.mark.parametrize("kind", [Kind.TENANT, Kind.NAMESPACE, Kind.CACHE])
@pytest.mark.parametrize(
    "name", ["", "a//b", "/", "a/b/c/d", "_x/n/c", "a\n/n/c", "a/" + "b" * 250]
)
def test_names_that_nobody_may_give(bench: Bench, kind: Kind, name: str) -> None:
    assert refused(lambda: create(bench, kind, name)) in (Code.INVALID_REQUEST, Code.NOT_AUTHORIZED)


def test_what_is_there_is_not_created_again(bench: Bench) -> None:
    create(bench, Kind.TENANT, "a")
    for name in ("a", "conf"):
        assert refused(lambda name=name: create(bench, Kind.TENANT, name)) is Code.TENANT_EXISTS  # type: ignore[misc]


def test_there_is_a_limit(bench: Bench) -> None:
    for number in range(6):
        create(bench, Kind.TENANT, f"t{number}")
    assert refused(lambda: create(bench, Kind.TENANT, "one-more")) is Code.LIMIT_REACHED
    delete(bench, Kind.TENANT, "t0")
    create(bench, Kind.TENANT, "one-more")


def test_two_at_the_same_moment_are_one(bench: Bench) -> None:
    """Compare and set: the second is told, and a cache that two values make is made once."""
    first, second = (bench.broker.tenants.create(ANYBODY, Kind.TENANT, "a") for _ in range(2))
    caches = [bench.broker.tenants.ensure_cache(ANYBODY, "a/n/c") for _ in range(2)]
    bench.settle()
    assert first.error is None and second.error is not None
    assert caches[0] is caches[1] and caches[0] is not None and caches[0].error is None
    assert bench.broker.tenants.ensure_cache(ANYBODY, "a/n/c") is None


def test_what_is_full_is_kept_unless_it_is_forced(bench: Bench) -> None:
    create(bench, Kind.TENANT, "a")
    create(bench, Kind.NAMESPACE, "a/n")
    create(bench, Kind.CACHE, "a/n/c")
    bench.broker.create_topic(ANYBODY, "a/n/s", 1)
    bench.settle()
    put(bench, "a/n/c", "k")
    put(bench, "conf3/n/c", "k")
    with pytest.raises(BrokerError, match=r"has 1 stream\(s\), 1 cache\(s\); delete them first"):
        delete(bench, Kind.NAMESPACE, "a/n")
    assert refused(lambda: delete(bench, Kind.TENANT, "a")) is Code.TENANT_IN_USE
    delete(bench, Kind.TENANT, "a", force=True)
    assert not bench.broker.tenants.exists("a", Kind.TENANT)
    assert bench.broker.engine.topic("a/n/s") is None
    assert len(bench.broker.cache.memory) == 1
    assert refused(lambda: delete(bench, Kind.TENANT, "a")) is Code.UNKNOWN_TENANT


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Kind.TENANT, "conf3"), (Kind.NAMESPACE, "conf2/n"), (Kind.CACHE, "conf3/n/c")],
)
def test_what_the_configuration_names_stays(bench: Bench, kind: Kind, name: str) -> None:
    with pytest.raises(BrokerError, match="stands in the configuration"):
        delete(bench, kind, name, force=True)


def test_nothing_is_deleted_where_a_right_is_missing(bench: Bench) -> None:
    create(bench, Kind.TENANT, "a")
    bench.broker.create_topic(ANYBODY, "a/mine/s", 1)
    bench.broker.create_topic(ANYBODY, "a/other/s", 1)
    bench.settle()
    some = Principal("some", "admin", ("a", "a/mine", "a/mine/*"))
    assert refused(lambda: delete(bench, Kind.TENANT, "a", force=True, who=some)) is (
        Code.NOT_AUTHORIZED
    )
    assert names(bench, Kind.STREAM) == ["a/mine/s", "a/other/s"]
    delete(bench, Kind.NAMESPACE, "a/mine", force=True, who=some)
    assert names(bench, Kind.STREAM) == ["a/other/s"]


def test_a_namespace_that_is_deleted_at_the_same_moment_takes_nothing_in(bench: Bench) -> None:
    create(bench, Kind.TENANT, "a")
    gone = bench.broker.engine.metadata.change([bench.broker.tenants._space.delete("a")])
    made = bench.broker.tenants.create(ANYBODY, Kind.NAMESPACE, "a/n")
    bench.settle()
    assert gone.error is None
    assert isinstance(made.error, BrokerError) and made.error.code is Code.UNKNOWN_TENANT


def test_records_survive_a_restart(tmp_path: Path) -> None:
    first = Bench(str(tmp_path / "data"))
    create(first, Kind.TENANT, "a")
    first.close()
    again = Bench(str(tmp_path / "data"))
    assert names(again, Kind.TENANT) == ["a"]
    again.close()


# --- the values of a cache --------------------------------------------------------------------------


def put(bench: Bench, scope: str, key: str, value: bytes = b"v") -> None:
    bench.broker.cache.put(ANYBODY, scope, key, value, None)
    bench.settle()


def got(bench: Bench, scope: str, key: str) -> bytes | None:
    found = bench.broker.cache.get(ANYBODY, scope, [key])
    if found is None:  # it is being read
        bench.settle()
        found = bench.broker.cache.get(ANYBODY, scope, [key])
    assert found is not None
    bench.settle()
    return found[0]


def test_a_cache_that_is_deleted_and_made_again_is_empty_also_after_a_restart(
    tmp_path: Path,
) -> None:
    bench = Bench(str(tmp_path / "data"), OPTIONS)
    bench.settle()
    bench.broker.tenants.ensure_cache(ANYBODY, "a/n/c")
    bench.settle()
    for number in range(200):
        put(bench, "a/n/c", str(number))
    put(bench, "a/n/other", "0")
    delete(bench, Kind.CACHE, "a/n/c")
    bench.broker.tenants.ensure_cache(ANYBODY, "a/n/c")
    bench.settle()
    assert got(bench, "a/n/c", "7") is None
    bench.close()
    again = Bench(str(tmp_path / "data"), OPTIONS)
    assert got(again, "a/n/c", "7") is None
    assert got(again, "a/n/other", "0") == b"v"
    again.close()


def test_a_deletion_that_a_crash_cut_short_goes_on(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"), OPTIONS)
    bench.settle()
    bench.broker.tenants.ensure_cache(ANYBODY, "a/n/c")
    bench.settle()
    put(bench, "a/n/c", "k")
    held: list[Pending[object]] = []

    def never(scope: str) -> Pending[object]:
        held.append(Pending())
        return held[0]

    bench.broker.cache.clear = never  # type: ignore[method-assign]  # the crash comes before its end

    async def begin() -> None:
        task = asyncio.ensure_future(
            bench.broker.tenants.delete(ANYBODY, Kind.CACHE, "a/n/c", force=False)
        )
        while not held:
            bench.settle()
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(begin())
    assert not bench.broker.tenants.has_cache("a/n/c")
    assert refused(lambda: create(bench, Kind.CACHE, "a/n/c")) is Code.OVERLOADED
    bench.close()
    again = Bench(str(tmp_path / "data"), OPTIONS)
    again.settle()
    assert not again.broker.tenants.exists("a/n/c", Kind.CACHE)
    again.broker.tenants.ensure_cache(ANYBODY, "a/n/c")
    again.settle()
    assert got(again, "a/n/c", "k") is None
    again.close()
