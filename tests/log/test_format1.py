"""A data directory of batch format 1 and metadata version 4, written by an older Penstock, still opens.

Here: its metadata. tests/data/format1 was made once and never changes; its keys are in format1.json.
"""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from kit.engines import values_of
from kit.logins import authenticate

from penstock.broker.access.access import Access, Principal
from penstock.log.embedded import EmbeddedEngine

DATA = Path(__file__).parent.parent / "data"
# Just after the directory was written: nothing is too old, and the open transaction is in time.
WRITTEN_US = 1_794_827_470_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "format1", tmp_path / "data"))


@pytest.fixture
def engine(directory: Path) -> Iterator[EmbeddedEngine]:
    with closing(EmbeddedEngine(str(directory), clock_us=lambda: WRITTEN_US)) as opened:
        yield opened


def test_topics_have_their_ids_and_settings(engine: EmbeddedEngine) -> None:
    found = {info.name: info for info in engine.topics()}
    assert {name: (info.id, info.partitions) for name, info in found.items()} == {
        "plain": (1, 2),
        "small": (2, 1),
        "compacted": (3, 1),
        "packed": (4, 1),
        "rich": (5, 1),
        "weak": (6, 1),
        "staged": (7, 1),
    }
    assert found["plain"].created_us == 1_794_827_469_032_474
    assert found["small"].settings.segment_bytes == 4096
    assert (found["compacted"].settings.cleanup, found["compacted"].settings.tombstone_ms) == (
        "compact",
        1,
    )
    assert found["packed"].settings.compression == "zstd"
    assert found["weak"].settings.durability == "none"
    assert engine.create_topic("new").id == 8


def test_group_offsets(engine: EmbeddedEngine) -> None:
    assert engine.groups() == {
        "group-a": {("plain", 0): 7, ("plain", 1): 3},
        "group-b": {("small", 0): 100},
    }


def test_keys_log_in_as_before_and_no_id_is_given_again(engine: EmbeddedEngine) -> None:
    secrets = msgspec.json.decode((DATA / "format1.json").read_bytes(), type=dict[str, str])
    nobody = Principal("anonymous", "nobody")
    access = Access(engine.metadata, (), development_key=False, anonymous=nobody)
    admin = authenticate(access, secrets["old-admin"])
    reader = authenticate(access, secrets["old-reader"])
    assert admin is not None and (admin.name, admin.role) == ("old-admin", "admin")
    assert reader is not None and (reader.role, reader.rules) == ("reader", ("plain", "small*"))
    new = authenticate(access, access.create_key("new", "user"))
    assert new is not None
    assert [admin.key_id, reader.key_id, new.key_id] == [1, 2, 3]


def test_transactions(engine: EmbeddedEngine) -> None:
    assert engine.transactions.state("done") == "committed"
    assert engine.transactions.state("open") == "open"
    assert values_of(engine, "staged") == [b"staged 0", b"staged 1"]
    engine.transactions.commit("open", [1])
    assert values_of(engine, "staged") == [b"staged 0", b"staged 1", b"never seen"]


def test_it_opens_again_as_it_is_now(directory: Path) -> None:
    seen = []
    for _ in range(2):
        with closing(EmbeddedEngine(str(directory), clock_us=lambda: WRITTEN_US)) as engine:
            seen.append((engine.topics(), engine.groups(), engine.transactions.state("open")))
    assert seen[0] == seen[1]
