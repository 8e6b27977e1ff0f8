"""Encrypted batches: their bytes, what opens them, and that no changed byte goes unseen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.encryption import KEYS, SECRET, counting_random
from kit.records import SOME_ROWS, Row, build, record_batch, rows_of
from librt.strings import read_i64_le

from penstock.log.batch import encryption
from penstock.log.batch.encryption import (
    OVERHEAD_BYTES,
    PREFIX_BYTES,
    Keyring,
    check_value,
    end_offset_of,
)
from penstock.log.batch.format import HEADER_SIZE, Batch, BatchError, check_batch, encode_values
from penstock.log.batch.view import BatchView, UnknownKeyId, view_body

SALT = 77


def sealed(batch: Batch, keyring: Keyring, base: int = 40, end: int = -1) -> bytes:
    header, stored = keyring.sealer(keyring.current).seal(batch, base, 39, SALT, end)
    assert len(header) == HEADER_SIZE
    return header + stored.body


def opened(content: bytes, keyring: Keyring, position: int = 0) -> BatchView:
    header = check_batch(content, position)
    return view_body(header, content, position + header.size, keyring.open_body)


def ring(*ids: int) -> Keyring:
    return Keyring({number: KEYS[number] for number in ids}, ids[-1])


# With the key 32 times 0x01, the salt 00..01 and the nonce 00..02.
GOLDEN = (
    "5053544ba00000008194293f00000200 28000000000000000200000000000000 "
    "40420f000000000040420f0000000000 00000000000000000000000000000000 "
    "27000000000000004d00000001000000 00000000000000000000000100000000 "
    "00000000000000022a00000000000000 be32e41827bad6e1e6db87e1fb50ad67 "
    "a29f66b6f6e93f2192317ba23e4c8932 95114bd5caa3eb1cbfc91424df1d1b1a"
)


def test_golden_bytes() -> None:
    keyring = Keyring({1: KEYS[1]}, 1, counting_random())
    content = sealed(encode_values([b"hello", b"world!"], 1_000_000), keyring)
    assert content.hex(" ", 16) == GOLDEN
    assert opened(content, ring(1)).values() == [b"hello", b"world!"]


def test_golden_bytes_by_another_hand() -> None:
    """The same with the primitives alone, so that the table in encryption.py is what is written."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    content = bytes.fromhex(GOLDEN)
    salt, nonce, end = content[80:92], content[92:104], content[104:112]
    data_key = HKDF(SHA256(), 32, salt, b"penstock data key 1").derive(KEYS[1])
    plain = AESGCM(data_key).decrypt(nonce, content[112:], content[12:80] + end)
    assert plain == encode_values([b"hello", b"world!"], 0).body
    assert int.from_bytes(end, "little") == 42


@given(rows=SOME_ROWS, zstd=st.booleans(), position=st.sampled_from([0, 8, 80]))
def test_every_column_comes_back(rows: list[Row], zstd: bool, position: int) -> None:
    batch = build(rows)
    keyring = ring(1, 2)
    content = bytes(position) + sealed(batch.compressed() if zstd else batch, keyring)
    view = opened(content, keyring, position)
    assert rows_of([view]) == rows
    assert view.header.key_id == 2
    assert end_offset_of(content, position + HEADER_SIZE) == 40 + len(rows)
    assert len(content) - position == (
        HEADER_SIZE + OVERHEAD_BYTES + len((batch.compressed() if zstd else batch).body)
    )


def test_arrow_points_into_what_was_decrypted() -> None:
    keyring = ring(1)
    view = opened(sealed(encode_values([b"one", b"two"], 5), keyring), keyring)
    found = record_batch(view, "t", 0)
    assert found.column("value").to_pylist() == [b"one", b"two"]
    values = found.column("value").buffers()[2]
    assert values.address % 8 == 0


def test_no_byte_of_a_record_is_readable() -> None:
    row = Row(SECRET + b" value", 1, SECRET + b" key", ((SECRET + b" name", SECRET),))
    for batch in (build([row]), build([row] * 50).compressed()):
        assert SECRET not in sealed(batch, ring(1))


def test_the_same_records_never_look_the_same() -> None:
    keyring = ring(1)
    sealer = keyring.sealer(1)
    batch = encode_values([b"same"], 5)
    contents = [sealer.seal(batch, 0, 0, SALT)[1].body for _ in range(3)]
    contents += [keyring.sealer(1).seal(batch, 0, 0, SALT)[1].body for _ in range(3)]
    assert len({body[12:24] for body in contents}) == 6, "a nonce came twice"
    assert len({body[PREFIX_BYTES:] for body in contents}) == 6
    assert len({body[:12] for body in contents}) == 4, "a data key of its own for each sealer"


def test_a_data_key_is_not_used_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "MAX_SEALED", 2)
    sealer = ring(1).sealer(1)
    batch = encode_values([b"v"], 5)
    salts = [sealer.seal(batch, number, 0, SALT)[1].body[:12] for number in range(5)]
    assert [salts.index(salt) for salt in salts] == [0, 0, 2, 2, 4]


def test_every_flipped_byte_is_found() -> None:
    """By the checksum; and by the tag where somebody has put the checksum right."""
    keyring = ring(1)
    content = sealed(build([Row(b"value", 1, b"key")]), keyring)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        with pytest.raises(BatchError):
            check_batch(bytes(changed), 0)
        if place < 12:
            continue  # magic, length, checksum
        with pytest.raises(BatchError):
            opened(_checksum_put_right(changed), keyring)


def _checksum_put_right(content: bytearray) -> bytes:
    from crc32c import crc32c

    checksum = crc32c(bytes(content[12:80]), crc32c(bytes(content[80:])))
    content[8:12] = checksum.to_bytes(4, "little")
    return bytes(content)


def test_another_key_and_no_key() -> None:
    content = sealed(encode_values([b"v"], 5), ring(1))
    with pytest.raises(UnknownKeyId, match="key 1"):
        opened(content, ring(2))
    with pytest.raises(BatchError, match="key 1: the bytes were changed"):
        opened(content, Keyring({1: KEYS[2]}, 1))
    with pytest.raises(UnknownKeyId):
        ring(1).sealer(2)


@pytest.mark.parametrize("kept", range(0, OVERHEAD_BYTES, 8))
def test_a_body_that_is_too_short(kept: int) -> None:
    """A checksum that is right over too few bytes."""
    keyring = ring(1)
    header, stored = keyring.sealer(1).seal(encode_values([b"v"], 5), 0, 0, SALT)
    short = stored.with_body(stored.body[:kept])
    content = short.stamped(header[12:]) + short.body
    with pytest.raises(BatchError, match="shorter"):
        opened(content, keyring)


def test_the_end_of_a_compacted_batch_needs_no_key() -> None:
    batch = build([Row(b"a"), Row(b"b")], offsets=[3, 90])
    content = sealed(batch, ring(1), base=3, end=91)
    assert end_offset_of(content, HEADER_SIZE) == 91
    view = opened(content, ring(1))
    assert view.next_offset() == 91
    assert read_i64_le(view.buffer, view.offsets_at) == 3


def test_check_values_tell_keys_apart() -> None:
    values = {check_value(key) for key in KEYS.values()}
    assert len(values) == len(KEYS)
    assert check_value(KEYS[1]) == ring(1).checks()[1]


def test_nothing_shows_a_key() -> None:
    keyring = ring(1, 2)
    shown = repr(keyring) + str(keyring) + repr(keyring.sealer(1))
    assert "\\x01\\x01" not in shown and KEYS[1].hex() not in shown
    assert "[1, 2]" in shown


def test_many_data_keys_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "KEPT_DATA_KEYS", 2)
    keyring = ring(1)
    contents = [sealed(encode_values([b"%d" % n], 5), keyring) for n in range(5)]
    for _ in range(2):
        found = [opened(content, keyring).values()[0] for content in contents]
        assert found == [b"%d" % n for n in range(5)]
    assert len(keyring._data_keys) == 2
