"""Records of a publish: which partition each goes to."""

import pytest
from broker.bench import ANYBODY, Bench

from penstock.broker.records import Records
from penstock.log.batch.key_partition import partition_of

# Check values of FNV-1a, 32 bits.
HASHES = {
    b"user-123": 0x8C93CC93,
    b"user-456": 0x58E2C8F4,
    b"user-789": 0x3D9C2C21,
    b"a": 0xE40C292C,
    b"test": 0xAFD071E5,
}


@pytest.mark.parametrize(("key", "hashed"), HASHES.items())
def test_the_hash_of_a_key(key: bytes, hashed: int) -> None:
    for partitions in (1, 3, 7, 1_000):
        assert partition_of(key, partitions) == hashed % partitions


def turn(size: int) -> int:
    return size % 4


@pytest.mark.parametrize(
    ("partitions", "keys", "expected"),
    [
        (1, [b"a", None, b"b"], {0: None}),
        (4, None, {3: None}),
        (4, [None, None, None], {3: None}),
        (3, [b"user-123", b"user-456", b"user-123"], {2: None}),
        (3, [b"user-123", b"user-789", b"user-123"], {2: [0, 2], 0: [1]}),
        (4, [b"user-789", None, None], {1: [0], 3: [1, 2]}),
    ],
)
def test_parts(
    partitions: int, keys: list[bytes | None] | None, expected: dict[int, list[int] | None]
) -> None:
    values = [b"x", b"y", b"z"]
    parts = Records(values, keys).parts(partitions, turn)
    assert {part.partition: part.rows for part in parts} == expected
    for part in parts:
        rows = part.rows if part.rows is not None else [0, 1, 2]
        assert part.records.values == [values[row] for row in rows]
        if keys is not None:
            assert part.records.keys == [keys[row] for row in rows]


def test_placing_makes_the_topic_and_publishes_nothing(bench: Bench) -> None:
    (part,) = bench.broker.place(ANYBODY, "t", Records([b"a"], [b"key"]))
    assert part.partition == 0 and part.rows is None
    bench.settle()
    assert bench.values("t") == []
