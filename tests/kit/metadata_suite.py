"""The page of metadata (log/records.py) as tests: one suite for all engines.

A module of tests derives a class from `MetadataSuite` and has a fixture `opening`, which opens the same
store again and again.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Protocol

import msgspec
import pytest

from kit.limits import HANG_S
from penstock.log.callbacks import Post
from penstock.log.errors import RecordConflict, UnknownTopic
from penstock.log.feeds import FED_AT_ONCE
from penstock.log.metadata_errors import MetadataClosed, MetadataOverloaded
from penstock.log.records import (
    ABSENT,
    ANY,
    PRESENT,
    Delete,
    DeleteAll,
    Edit,
    Metadata,
    Put,
    RecordChange,
    Require,
    Space,
    prefix_of,
)

LAST = "\U0010ffff"


class ClosableMetadata(Metadata, Protocol):
    commits: int
    changes: int

    def close(self) -> None: ...


class Opening(Protocol):
    """Opens the store of the test. There is one at a time."""

    def __call__(self, post: Post | None, max_queued: int | None = None) -> ClosableMetadata: ...


def change(store: Metadata, *edits: Edit) -> int:
    return store.change(edits).result(HANG_S)


def names(store: Metadata, space: str = "s", prefix: str = "") -> list[str]:
    return [record.name for record in store.list(space, prefix)]


def expectation_holds(store: Metadata, kind: type[Edit], expected: int | str, there: bool) -> None:
    """One edit that expects something, of a record that is there or not; the space is empty before."""
    version = change(store, Put("s", "a", b"before")) if there else ABSENT
    wanted = {"right": version, "wrong": version + 1}.get(str(expected), expected)
    assert isinstance(wanted, int)
    edits: dict[type[Edit], Edit] = {
        Put: Put("s", "a", b"after", wanted),
        Delete: Delete("s", "a", wanted),
        Require: Require("s", "a", wanted),
    }
    fits = {ANY: True, ABSENT: not there, PRESENT: there, "right": True, "wrong": False}[expected]
    beside = store.change((Put("s", "beside", b""), edits[kind]))
    if fits:
        beside.result(HANG_S)
    else:
        with pytest.raises(RecordConflict) as caught:
            beside.result(HANG_S)
        assert (caught.value.expected, caught.value.found) == (wanted, version)
    assert (store.get("s", "beside") is not None) == fits, "all or nothing"
    kept = store.get("s", "a")
    after = {Put: b"after", Delete: None, Require: b"before" if there else None}[kind]
    assert (kept and kept.value) == (after if fits else b"before" if there else None)


class Person(msgspec.Struct, frozen=True):
    age: int
    token: bytes = b""


class MetadataSuite:
    @pytest.fixture
    def store(self, opening: Opening) -> Iterator[ClosableMetadata]:
        with closing(opening(None)) as opened:
            yield opened

    def test_a_record_is_there_with_its_version(self, store: ClosableMetadata) -> None:
        first = change(store, Put("s", "a", b"one"), Put("t", "a", b"other"))
        second = change(store, Put("s", "a", b"two"))
        assert second > first
        found, other = store.get("s", "a"), store.get("t", "a")
        assert found is not None and (found.value, found.version) == (b"two", second)
        assert other is not None and (other.value, other.version) == (b"other", first)
        assert store.get("s", "b") is None

    def test_a_version_is_never_given_again(self, opening: Opening) -> None:
        versions = []
        for _ in range(3):
            with closing(opening(None)) as store:
                versions.append(change(store, Put("s", "a", b"")))
                versions.append(change(store, Delete("s", "a")))
        assert versions == sorted(set(versions))

    @pytest.mark.parametrize("kind", [Put, Delete, Require])
    def test_an_edit_happens_if_the_record_is_as_expected(
        self, store: ClosableMetadata, kind: type[Edit]
    ) -> None:
        for there in (False, True):
            for expected in (ANY, ABSENT, PRESENT, "right", "wrong"):
                store.change([DeleteAll("s", "")])
                expectation_holds(store, kind, expected, there)

    def test_a_requirement_may_have_an_error_of_its_own(self, store: ClosableMetadata) -> None:
        with pytest.raises(UnknownTopic):
            change(store, Require("topics", "t", PRESENT, UnknownTopic("t")), Put("s", "a", b""))
        assert names(store) == []

    def test_one_of_many_that_expect_the_same_wins(self, store: ClosableMetadata) -> None:
        version = change(store, Put("s", "a", b""))
        tries = [store.change((Put("s", "a", b"%d" % n, version),)) for n in range(50)]
        errors = []
        for one in tries:
            try:
                one.result(HANG_S)
            except RecordConflict as error:
                errors.append(error)
        assert len(errors) == 49
        found = store.get("s", "a")
        assert found is not None and found.value == b"0"

    def test_lists_by_prefix_and_page(self, store: ClosableMetadata) -> None:
        wanted = ["", "a", "a\0", "a/", "a/b", "a0", "b", "\ud7ff", "\ue000", LAST, LAST + "a"]
        change(store, *(Put("s", name, name.encode()) for name in reversed(wanted)))
        change(store, Put("r", "a", b""), Put("t", "a", b""))
        assert names(store) == wanted
        for prefix in ["", "a", "a/", "\ud7ff", LAST, LAST + LAST, "c"]:
            assert names(store, prefix=prefix) == [one for one in wanted if one.startswith(prefix)]
        paged: list[str] = []
        after = None
        while page := store.list("s", after=after, limit=3):
            assert len(page) <= 3
            paged += [record.name for record in page]
            after = paged[-1]
        assert paged == wanted
        assert [one.name for one in store.list("s", "a", after="a/", limit=9)] == ["a/b", "a0"]

    def test_all_of_a_prefix_go_at_the_moment_of_the_change(self, store: ClosableMetadata) -> None:
        store.change([Put("s", name, b"") for name in ("1/a", "1/b", "10/a", "2/a")])
        store.change((Put("s", "1/late", b""),))
        change(store, DeleteAll("s", prefix_of(1)))
        assert names(store) == ["10/a", "2/a"]

    def test_the_feed_tells_what_is_durable_in_order_and_first(
        self, store: ClosableMetadata
    ) -> None:
        seen: list[object] = []
        done = threading.Event()

        def told(changes: Sequence[RecordChange]) -> None:
            for one in changes:
                found = store.get("s", one.name)
                assert (found and found.value) == one.value, "it can be read"
                seen.append((one.name, one.value))

        store.watch("s", told)
        for edit in (Put("s", "a", b"1"), Put("t", "a", b""), Delete("s", "b")):
            change(store, edit)
        refused = store.change((Put("s", "c", b"2"), Put("s", "a", b"3", ABSENT)))
        last = store.change((DeleteAll("s", ""),))
        last.on_done(lambda _: seen.append("done"))
        last.on_done(lambda _: done.set())
        assert done.wait(HANG_S) and isinstance(refused.error, RecordConflict)
        assert seen == [("a", b"1"), ("a", None), "done"]
        store.unwatch("s", told)
        change(store, Put("s", "a", b"4"))
        assert len(seen) == 3

    def test_very_many_steps_are_told_in_parts_and_before_the_completion(
        self, opening: Opening
    ) -> None:
        """Others have their turn in between, and what comes behind overtakes nothing."""
        posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        with closing(opening(posted.put)) as store:
            keys = [f"p/{number:05}" for number in range(3 * FED_AT_ONCE)]
            store.change([Put("s", name, b"") for name in keys]).result(HANG_S)
            while posted.qsize():
                posted.get()()
            told: list[Sequence[str]] = []
            store.watch("s", lambda changes: told.append([step.name for step in changes]))
            done: list[int] = []
            deletion = store.change([DeleteAll("s", "p/")])
            deletion.on_done(lambda _: done.append(len(told)))
            later = store.change([Put("s", "later", b"")])
            later.on_done(lambda _: done.append(len(told)))
            turns = 0
            while len(done) < 2:
                posted.get(timeout=HANG_S)()
                turns += 1
        assert [name for part in told[:-1] for name in part] == keys
        assert max(map(len, told)) == FED_AT_ONCE and told[-1] == ["later"]
        assert done == [3, 4] and turns > 3

    def test_a_feed_keeps_the_order_of_the_versions_whoever_changes(
        self, store: ClosableMetadata
    ) -> None:
        versions: list[int] = []
        store.watch("s", lambda changes: versions.extend(one.version for one in changes))

        def work(worker: int) -> None:
            for number in range(50):
                change(store, Put("s", f"{worker}", b"%d" % number))

        workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(HANG_S)
        change(store, Put("t", "a", b""))  # behind all of them
        assert len(versions) == 400 and versions == sorted(versions)

    def test_a_watcher_that_fails_hides_nothing_from_the_others(
        self, store: ClosableMetadata, caplog: pytest.LogCaptureFixture
    ) -> None:
        seen: list[str] = []
        store.watch("s", lambda _: 1 // 0)
        store.watch("s", lambda changes: seen.extend(one.name for one in changes))
        change(store, Put("s", "a", b""))
        change(store, Put("t", "a", b""))
        assert seen == ["a"] and "a watcher of s failed" in caplog.text

    def test_a_typed_space(self, store: ClosableMetadata) -> None:
        people = Space(store, "people", Person)
        change(store, people.put("ann", Person(7, b"\xff"), ABSENT), people.put("bob", Person(8)))
        found = people.get("ann")
        assert found is not None and found.value == Person(7, b"\xff")
        change(store, people.delete("ann", found.version), people.require("bob"))
        assert [(one.name, one.value.age) for one in people.all()] == [("bob", 8)]
        assert [one.name for one in people.page(None, 1)] == ["bob"]
        change(store, Put("people", "odd", b'{"age": "old"}'))
        with pytest.raises(msgspec.DecodeError):
            people.get("odd")
        change(store, people.delete_all(""))
        assert list(people.all()) == []

    def test_names_hold_any_utf8(self, store: ClosableMetadata) -> None:
        for name in [
            "\u00fc\u4e2d\U0001f600",
            "..",
            "a/b",
            "A",
            "a",
            "it's",
            "nul\0inside",
            " ",
            "",
        ]:
            change(store, Put("s" + name, name, b"1"))
            found = store.get("s" + name, name)
            assert found is not None and (found.name, found.value) == (name, b"1")
            assert names(store, "s" + name) == [name]

    def test_a_name_that_is_no_utf8_fails_alone(self, store: ClosableMetadata) -> None:
        bad, good = store.change([Put("s", "\ud800", b"")]), store.change([Put("s", "a", b"")])
        good.result(HANG_S)
        with pytest.raises(UnicodeEncodeError):
            bad.result(HANG_S)

    def test_a_value_of_16_mib(self, opening: Opening) -> None:
        value = bytes(range(256)) * 65_536
        with closing(opening(None)) as store:
            change(store, Put("s", "large", value), Put("s", "small", b""))
        with closing(opening(None)) as store:
            found = store.get("s", "large")
            assert found is not None and found.value == value

    def test_the_queue_is_bounded(self, opening: Opening) -> None:
        """A completion that waits holds up the store: what comes meanwhile is queued."""
        running, release = threading.Event(), threading.Event()
        with closing(opening(None, 3)) as store:

            def hold(_: object) -> None:
                running.set()
                assert release.wait(HANG_S)

            store.change([Put("s", "first", b"")]).on_done(hold)
            assert running.wait(HANG_S)
            kept = []
            with pytest.raises(MetadataOverloaded, match="3 metadata changes wait"):
                for _ in range(3 + 2):
                    kept.append(store.change([Put("s", "a", b"")]))
            release.set()
            for one in kept:
                one.result(HANG_S)
            change(store, Put("s", "again", b""))

    def test_close_writes_what_is_queued(self, opening: Opening) -> None:
        store = opening(None)
        changes = [store.change([Put("s", str(number), b"")]) for number in range(100)]
        store.close()
        assert all(one.done and one.error is None for one in changes)
        store.close()  # again: nothing happens
        with pytest.raises(MetadataClosed):
            store.change([Put("s", "late", b"")])
        with pytest.raises(MetadataClosed):
            store.get("s", "late")
        with closing(opening(None)) as again:
            assert len(again.list("s")) == 100

    def test_commits_and_changes_are_counted(self, store: ClosableMetadata) -> None:
        changes = [store.change([Put("s", "a", b"")]) for _ in range(50)]
        changes.append(store.change([Put("s", "a", b"", ABSENT)]))
        for one in changes[:50]:
            one.result(HANG_S)
        assert isinstance(changes[50].error, RecordConflict) or not changes[50].done
        change(store, Put("s", "b", b""))
        assert store.changes == 52 and store.commits <= 52
