"""The cache: what it holds, in how many bytes, for how long, and what survives a restart."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.access.access import Principal
from penstock.broker.cache.cache import ENTRY_BYTES, SPARE_DEADLINES, Cache
from penstock.broker.errors import BrokerError, Code
from penstock.broker.options import BrokerOptions

MS = 1_000


class Time:
    """A clock, and timers that run when the test says so."""

    def __init__(self) -> None:
        self.now_us = 0
        self.timers: list[Callable[[], None]] = []

    def __call__(self) -> int:
        return self.now_us

    def later(self, _: float, work: Callable[[], None]) -> None:
        self.timers.append(work)

    def sweep(self) -> None:
        """Runs what is planned, and what follows from it at this moment."""
        timers, self.timers = self.timers, []
        for work in timers:
            work()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def cache(time: Time) -> Cache:
    return Cache(lambda: 10_000, time, time.later)


def put(cache: Cache, key: str, value: bytes = b"v", ttl_ms: int | None = None) -> None:
    cache.put("s", key, value, cache.deadline_us(ttl_ms))


def test_values_by_scope_and_key(cache: Cache) -> None:
    cache.put("a", "k", b"1", None)
    cache.put("b", "k", b"2", None)
    cache.put("b", "", b"", None)
    assert (cache.get("a", "k"), cache.get("b", "k"), cache.get("b", "")) == (b"1", b"2", b"")
    assert cache.get("c", "k") is None
    assert (cache.counters.hits, cache.counters.misses) == (3, 1)
    cache.delete("a", "k")
    assert cache.get("a", "k") is None


def test_a_second_put_replaces_value_and_time(cache: Cache, time: Time) -> None:
    put(cache, "k", b"old", ttl_ms=10)
    put(cache, "k", b"new")
    time.now_us = 1_000 * MS
    time.sweep()
    assert cache.get("s", "k") == b"new"
    assert len(cache) == 1


@pytest.mark.parametrize("ttl_ms", [0, 1, 10])
def test_a_value_expires(cache: Cache, time: Time, ttl_ms: int) -> None:
    put(cache, "k", ttl_ms=ttl_ms)
    time.now_us = ttl_ms * MS - 1
    assert (cache.get("s", "k") is None) == (ttl_ms == 0)
    time.now_us += 1
    assert cache.get("s", "k") is None
    assert (len(cache), cache.used_bytes) == (0, 0)


def test_expired_values_are_removed_without_a_read(cache: Cache, time: Time) -> None:
    for number in range(20):
        put(cache, str(number), ttl_ms=number + 1)
    time.now_us = 10 * MS
    time.sweep()
    assert (len(cache), cache.counters.expired) == (10, 10)
    time.now_us = 20 * MS
    time.sweep()
    assert (len(cache), cache.used_bytes) == (0, 0)
    assert time.timers == []  # an empty cache plans nothing


def test_the_least_recently_used_goes_first(cache: Cache) -> None:
    value = bytes(10_000 // 4 - ENTRY_BYTES - 2)
    for key in "abcd":
        put(cache, key, value)
    cache.get("s", "a")
    put(cache, "e", value)
    assert [cache.get("s", key) is not None for key in "abcde"] == [True, False, True, True, True]
    assert cache.counters.evicted == 1


def test_a_value_that_never_fits_is_refused(cache: Cache) -> None:
    put(cache, "k")
    with pytest.raises(BrokerError) as refused:
        put(cache, "k", bytes(10_000))
    assert refused.value.code is Code.RECORD_TOO_LARGE
    assert cache.get("s", "k") == b"v"


def test_old_deadlines_do_not_pile_up(cache: Cache) -> None:
    for _ in range(3 * SPARE_DEADLINES):
        put(cache, "k", ttl_ms=1_000_000)
    assert len(cache._deadlines) <= SPARE_DEADLINES + 10


KEYS = st.sampled_from("abcdef")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), KEYS, st.integers(0, 3_000), st.none() | st.integers(0, 50)),
            st.tuples(st.just("get"), KEYS, st.just(0), st.none()),
            st.tuples(st.just("wait"), KEYS, st.integers(1, 30), st.none()),
        )
    )
)
def test_the_cache_is_a_bounded_dictionary_with_deadlines(
    steps: list[tuple[str, str, int, int | None]],
) -> None:
    """Whatever is found was put last, is not expired, and all of it fits the limit."""
    time = Time()
    cache = Cache(lambda: 10_000, time, time.later)
    known: dict[str, tuple[bytes, int | None]] = {}
    for step, key, number, ttl_ms in steps:
        if step == "put":
            value = bytes([len(known)]) * number
            put(cache, key, value, ttl_ms)
            known[key] = (value, None if ttl_ms is None else time.now_us + ttl_ms * MS)
        elif step == "wait":
            time.now_us += number * MS
            time.sweep()
        else:
            found = cache.get("s", key)
            value, deadline_us = known.get(key, (b"", 0))
            dead = deadline_us is not None and deadline_us <= time.now_us
            assert found is None or (found == value and not dead)
        assert cache.used_bytes == sum(entry.size for entry in cache._entries.values()) <= 10_000
        assert len(order(cache)) == len(cache)


def order(cache: Cache) -> list[str]:
    """The keys, the one that was not used for longest first, as the links have it both ways."""
    found, entry = [], cache._head.newer
    while entry is not cache._head:
        assert entry.newer.older is entry
        found.append(entry.name[1])
        entry = entry.newer
    return found


def test_the_deadlines_of_values_that_are_gone_do_not_pile_up() -> None:
    """Each value is evicted by the next one, long before its time."""
    time = Time()
    cache = Cache(lambda: 10_000, time, time.later)
    for number in range(10 * SPARE_DEADLINES):
        put(cache, str(number), bytes(5_000), ttl_ms=1_000_000)
        held = len(cache._deadlines) + len(cache._old_deadlines)
        assert held <= 2 * (SPARE_DEADLINES + 10)
    time.now_us = 1_000_001 * MS
    while time.timers:
        time.sweep()
    assert (len(cache), cache._deadlines, cache._old_deadlines) == (0, [], [])


def test_a_value_expires_while_the_heap_is_moved() -> None:
    time = Time()
    cache = Cache(lambda: 10**9, time, time.later)
    for number in range(SPARE_DEADLINES + 100):
        put(cache, str(number), ttl_ms=1_000 + number)
    for number in range(10, SPARE_DEADLINES + 100):
        cache.delete("s", str(number))
    put(cache, "last", ttl_ms=500)
    assert cache._old_deadlines
    time.now_us = 1_005 * MS
    time.sweep()
    assert [cache.get("s", str(number)) for number in range(10)] == [None] * 6 + [b"v"] * 4
    assert len(cache) == 4


def test_a_later_deadline_holds_and_costs_no_second_place(cache: Cache, time: Time) -> None:
    for ttl_ms in (10, 20, 30):
        put(cache, "k", ttl_ms=ttl_ms)
    assert len(cache._deadlines) == 1
    time.now_us = 25 * MS
    time.sweep()
    assert cache.get("s", "k") == b"v"
    put(cache, "k", ttl_ms=1)
    time.now_us = 26 * MS
    time.sweep()
    assert len(cache) == 0


def test_much_to_do_is_done_in_turns() -> None:
    """A large value for very many small ones, and very many that expire at once."""
    time = Time()
    many = 30_000
    cache = Cache(lambda: (many + 1) * (ENTRY_BYTES + 10), time, time.later)
    for number in range(many):
        put(cache, str(number), ttl_ms=1_000)
    put(cache, "large", bytes(many * ENTRY_BYTES), ttl_ms=None)
    assert cache._evicting  # not at once
    turns = 0
    while cache._evicting:
        time.sweep()
        turns += 1
    assert turns > 1 and cache.get("s", "large") is not None
    assert cache.used_bytes <= (many + 1) * (ENTRY_BYTES + 10)
    cache.delete("s", "large")
    for number in range(many):
        put(cache, str(number), ttl_ms=1_000)
    time.now_us = 1_000 * MS
    turns = 0
    while len(cache):
        time.sweep()
        turns += 1
    assert turns > 1


@pytest.mark.soak
def test_a_million_values() -> None:
    time = Time()
    cache = Cache(lambda: 10**12, time, time.later)
    for number in range(1_000_000):
        put(cache, str(number), ttl_ms=1_000 + number % 7)
    assert (len(cache), cache.get("s", "999999")) == (1_000_000, b"v")
    time.now_us = 1_003 * MS
    while (expired := cache.counters.expired) < 571_430:
        time.sweep()
        assert cache.counters.expired > expired or time.timers
    assert len(cache) == 1_000_000 - cache.counters.expired


# --- with a topic behind it ------------------------------------------------------------------------

STORED = BrokerOptions(cache_topic="felix.cache")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"), STORED)
    made.settle()
    yield made
    made.close()


def got(bench: Bench, key: str, scope: str = "s") -> bytes | None:
    found = bench.broker.cache.get(ANYBODY, scope, [key])
    if found is None:  # it is being read
        bench.settle()
        found = bench.broker.cache.get(ANYBODY, scope, [key])
    assert found is not None
    bench.settle()
    return found[0]


def test_a_put_is_done_when_it_is_durable(bench: Bench) -> None:
    token = bench.broker.cache.put(ANYBODY, "s", "k", b"v", None)
    assert token is not None and not token.done
    assert got(bench, "k") is None
    assert (token.done, got(bench, "k")) == (True, b"v")


def test_values_survive_a_restart(tmp_path: Path) -> None:
    first = Bench(str(tmp_path / "data"), STORED)
    first.settle()
    for key, value, ttl_ms in (
        ("a", b"old", None),
        ("a", b"new", None),
        ("b", b"soon", 1_000),
        ("c", b"later", 100_000),
        ("d", b"x", None),
        ("d", b"gone", 0),
    ):
        first.broker.cache.put(ANYBODY, "s", key, value, ttl_ms)
        first.settle()
    assert got(first, "d") is None
    first.close()
    again = Bench(str(tmp_path / "data"), STORED, clock=first.clock)
    again.clock.now_us += 10_000_000
    # A read that comes before all is loaded waits.
    assert [got(again, key) for key in "abcd"] == [b"new", None, b"later", None]
    again.close()


def test_a_value_that_is_written_while_the_topic_is_read_is_the_newer_one(tmp_path: Path) -> None:
    first = Bench(str(tmp_path / "data"), STORED)
    first.settle()
    first.broker.cache.put(ANYBODY, "s", "k", b"old", None)
    first.broker.cache.put(ANYBODY, "s", "gone", b"old", None)
    first.settle()
    first.close()
    again = Bench(str(tmp_path / "data"), STORED)
    again.broker.cache.put(ANYBODY, "s", "k", b"new", None)
    again.broker.cache.put(ANYBODY, "s", "gone", b"", 0)
    while again.engine.commit.step():  # durable before the first record is read back
        continue
    again.run_posted()
    assert (got(again, "k"), got(again, "gone")) == (b"new", None)
    again.close()


@pytest.mark.parametrize("ttl_ms", [None, 10])
def test_what_the_cache_gave_up_does_not_come_back(tmp_path: Path, ttl_ms: int | None) -> None:
    """Evicted or expired: a mark in the topic says so, and compaction can remove the value."""
    small = BrokerOptions(cache_topic="felix.cache", cache_bytes=2 * (ENTRY_BYTES + 100))
    first = Bench(str(tmp_path / "data"), small)
    first.settle()
    for key in "abcd":
        first.broker.cache.put(ANYBODY, "s", key, bytes(90), ttl_ms)
        first.settle()
    first.advance(2_000)
    first.settle()
    kept = 0 if ttl_ms else 2
    assert len(first.broker.cache.memory) == kept
    first.close()
    again = Bench(str(tmp_path / "data"), STORED, clock=first.clock)
    assert [got(again, key) is not None for key in "abcd"] == [False, False, *[ttl_ms is None] * 2]
    end = again.engine.offsets("felix.cache", 0)[1]
    assert end == 4 + 4 - kept
    again.close()


def test_a_value_that_is_written_again_at_once_is_not_marked(tmp_path: Path) -> None:
    small = BrokerOptions(cache_topic="felix.cache", cache_bytes=ENTRY_BYTES + 100)
    first = Bench(str(tmp_path / "data"), small)
    first.settle()
    for _ in range(3):
        for key in "ab":
            first.broker.cache.put(ANYBODY, "s", key, bytes(90), None)
    first.settle()
    assert got(first, "b") == bytes(90)
    first.close()
    again = Bench(str(tmp_path / "data"), STORED)
    assert got(again, "b") == bytes(90)
    again.close()


def test_what_others_write_to_the_topic_is_left_alone(tmp_path: Path) -> None:
    first = Bench(str(tmp_path / "data"), STORED)
    first.publish("felix.cache", b"a record without a key")
    first.broker.cache.put(ANYBODY, "s", "k", b"v", None)
    first.settle()
    first.close()
    again = Bench(str(tmp_path / "data"), STORED)
    assert got(again, "k") == b"v"
    again.close()


def test_rights_are_those_of_the_scope(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"))
    reader = Principal("reader", "reader")
    bench.broker.cache.put(ANYBODY, "t/n/c", "k", b"v", None)
    assert bench.broker.cache.get(reader, "t/n/c", ["k"]) == [b"v"]
    with pytest.raises(BrokerError) as refused:
        bench.broker.cache.put(reader, "t/n/c", "k", b"v", None)
    assert refused.value.code is Code.NOT_AUTHORIZED
    bench.close()
