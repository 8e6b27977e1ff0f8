"""Lost metadata: refused at start, and made anew from the directories of the topics."""

import errno
import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from kit.engines import batch, make, put, settle, values_of
from kit.faulty_files import FaultyFiles
from kit.limits import HANG_S

from penstock.broker.access.access import Access, Principal
from penstock.log.embedded import EmbeddedEngine
from penstock.log.metadata.descriptions import DESCRIPTION_FILE
from penstock.log.metadata.rebuild import LeftAlone, MetadataPresent, Rebuilt, rebuild
from penstock.log.metadata.store import MetadataStore
from penstock.log.metadata_errors import MetadataMissing
from penstock.log.storage.files import RealFiles

FORMAT1 = Path(__file__).parents[2] / "data" / "format1"
NOW_US = 1_900_000_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def opened(data: Path) -> EmbeddedEngine:
    return EmbeddedEngine(str(data))


def access_to(engine: EmbeddedEngine) -> Access:
    nobody = Principal("anonymous", "nobody")
    return Access(engine.metadata, (), development_key=False, anonymous=nobody)


def fill(data: Path) -> None:
    with closing(opened(data)) as engine:
        make(engine, "orders", 3, retention_ms=7, segment_bytes=4096)
        make(engine, "a/B", compression="zstd")
        make(engine, "empty")
        put(engine, "orders", b"one", b"two", partition=1)
        put(engine, "a/B", b"three")
        engine.commit_offset("g", "orders", 1, 1).result(HANG_S)
        access_to(engine).create_key("ann", "admin")
        settle(engine)


def lose_metadata(data: Path) -> None:
    for path in data.glob("metadata.db*"):
        path.unlink()


@pytest.mark.parametrize("emptied", [False, True])
def test_topics_without_metadata_are_no_new_directory(data: Path, emptied: bool) -> None:
    fill(data)
    lose_metadata(data)
    if emptied:
        (data / "metadata.db").touch()
    with pytest.raises(MetadataMissing) as caught:
        opened(data)
    line = str(caught.value)
    assert "missing beside 2 topic directories" in line and "\n" not in line
    assert f"penstock log rebuild-metadata {data}" in line
    assert (data / "metadata.db").exists() == emptied, "nothing was made in its place"


def test_topics_come_back_as_they_were(data: Path) -> None:
    fill(data)
    with closing(opened(data)) as engine:
        before = {info.name: info for info in engine.topics() if info.name != "empty"}
    lose_metadata(data)
    topics, left = rebuild(RealFiles(), str(data), NOW_US)
    assert sorted(topics, key=lambda one: one.name) == [
        Rebuilt("a/B", 1, True),
        Rebuilt("orders", 3, True),
    ]
    assert left == []
    with closing(opened(data)) as engine:
        assert {info.name: info for info in engine.topics()} == before
        assert values_of(engine, "orders", 1) == [b"one", b"two"]
        assert values_of(engine, "a/B") == [b"three"]
        assert engine.groups() == {}
        assert engine.create_topic("new").id == max(info.id for info in before.values()) + 1


def test_no_key_comes_back_and_the_development_key_stays_off(data: Path) -> None:
    fill(data)
    lose_metadata(data)
    rebuild(RealFiles(), str(data), NOW_US)
    with closing(opened(data)) as engine:
        access = access_to(engine)
        assert access.list_keys() == []
        assert access.has_stored_logins, "as after a key was revoked"


def test_new_transactions_are_not_taken_for_old_ones(data: Path) -> None:
    """Partitions know the numbers of committed transactions: what has an old number is a repeat."""
    seen = []
    for round_number in range(2):
        with closing(opened(data)) as engine:
            if engine.topic("t") is None:
                make(engine, "t")
            name, value = f"transaction {round_number}", b"%d" % round_number
            engine.transactions.begin(name, 10**12)
            engine.transactions.stage(name, 1, "t", 0, batch(value))
            engine.transactions.commit(name, {1: None})
            seen.append(value)
            assert values_of(engine, "t") == seen
        lose_metadata(data)
        rebuild(RealFiles(), str(data), NOW_US)


def test_directories_of_an_older_version_have_the_defaults(data: Path) -> None:
    shutil.copytree(FORMAT1, data)
    with closing(opened(data)) as engine:
        before = {info.name: info.partitions for info in engine.topics()}
        records = values_of(engine, "small")
    for path in data.rglob(DESCRIPTION_FILE):
        path.unlink()
    lose_metadata(data)
    topics, _ = rebuild(RealFiles(), str(data), NOW_US)
    assert {one.name: one.partitions for one in topics} == before
    assert not any(one.described for one in topics)
    with closing(opened(data)) as engine:
        assert values_of(engine, "small") == records


def test_old_directories_get_descriptions_in_time(data: Path) -> None:
    shutil.copytree(FORMAT1, data)
    with closing(opened(data)) as engine:
        engine.maintain()
        assert len(list(data.rglob(DESCRIPTION_FILE))) == len(engine.topics())


def test_a_description_follows_its_topic(data: Path) -> None:
    def described() -> tuple[int, int]:
        content = msgspec.json.decode((data / "topics" / "orders" / DESCRIPTION_FILE).read_bytes())
        return content["partitions"], content["settings"]["retention_ms"]

    with closing(opened(data)) as engine:
        make(engine, "orders", 1, retention_ms=7)
        engine.maintain()
        assert not (data / "topics" / "orders").exists(), "a topic without records has no directory"
        put(engine, "orders", b"v")
        engine.maintain()
        assert described() == (1, 7)
        engine.change_topic("orders", {"retention_ms": 8}, 2).result(HANG_S)
        settle(engine)
        engine.maintain()
        assert described() == (2, 8)
        engine.change_topic("orders", {"retention_ms": 9}).result(HANG_S)
        settle(engine)
    assert described() == (2, 9), "a stop writes what is left"


def test_of_two_directories_for_one_name_the_newer_counts(data: Path) -> None:
    fill(data)
    lose_metadata(data)
    topics = data / "topics"
    shutil.copytree(topics / "orders", topics / "orders~2")
    content = (topics / "orders" / DESCRIPTION_FILE).read_bytes().replace(b'"id": 1', b'"id": 9')
    (topics / "orders~2" / DESCRIPTION_FILE).write_bytes(content)
    (topics / "stray").touch()
    (topics / "nothing").mkdir()
    _, left = rebuild(RealFiles(), str(data), NOW_US)
    assert sorted(left, key=lambda one: one.directory) == [
        LeftAlone("nothing", "it holds no partition"),
        LeftAlone("orders", "topic 'orders' has a newer directory"),
        LeftAlone("stray", "it is no directory"),
    ]
    with closing(opened(data)) as engine:
        assert engine.catalogue.get("orders").directory == "orders~2"


@pytest.mark.parametrize("content", [b"", b"{", b'{"name": 7}', b"\xff"])
def test_a_description_that_cannot_be_read_is_none(data: Path, content: bytes) -> None:
    fill(data)
    lose_metadata(data)
    (data / "topics" / "a%2f%42" / DESCRIPTION_FILE).write_bytes(content)
    topics, _ = rebuild(RealFiles(), str(data), NOW_US)
    assert Rebuilt("a/B", 1, False) in topics


def test_metadata_that_is_there_is_left_alone(data: Path) -> None:
    fill(data)
    before = (data / "metadata.db").read_bytes()
    with pytest.raises(MetadataPresent):
        rebuild(RealFiles(), str(data), NOW_US)
    assert (data / "metadata.db").read_bytes() == before


def test_a_rebuild_that_was_interrupted_is_begun_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data)
    lose_metadata(data)
    with monkeypatch.context() as patch:
        patch.setattr(MetadataStore, "change", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            rebuild(RealFiles(), str(data), NOW_US)
    with pytest.raises(MetadataMissing):
        opened(data)
    topics, _ = rebuild(RealFiles(), str(data), NOW_US)
    assert len(topics) == 2
    assert [path.name for path in data.glob("metadata.db*")] == ["metadata.db"]


def test_descriptions_that_cannot_be_written_are_one_line_and_tried_again(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(RealFiles())
    with closing(EmbeddedEngine(str(data), files=files)) as engine:
        for name in ("a", "b", "c"):
            make(engine, name)
            put(engine, name, b"v")
        files.fail("create", errno.ENOSPC, times=None, suffix=f"{DESCRIPTION_FILE}.tmp")
        for _ in range(2):
            engine.maintain()
        assert caplog.text.count("descriptions of 3 topics wait") == 2
        files.clear()
        engine.maintain()
        assert len(list(data.rglob(DESCRIPTION_FILE))) == 3
