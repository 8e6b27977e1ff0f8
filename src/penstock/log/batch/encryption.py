"""Encrypted batches: how a body is sealed with AES-256-GCM, and the keys that open it again.

Does no I/O: where keys come from is the configuration's affair, which topics use them that of the metadata.
Keys never appear in a repr, an error or a log line.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.log.batch.format import CRC_FROM, Batch, BatchError, BatchHeader
from penstock.log.batch.view import UnknownKeyId

# The body of a batch whose header names a key, little-endian, a multiple of 8 like every body:
#
#    0 12s salt of the data key: HKDF-SHA256 of the key with it gives the AES-256 key of this batch
#   12 12s nonce
#   24 i64 end offset: the one behind the last record. A compacted batch has it in a column, which nobody
#          can read without the key; recovery and followers of the file need it.
#   32 the body that the flags describe, compressed or not, encrypted: as long as before
#   .. 16s tag
#
# The tag also covers bytes 12 to 80 of the header and the end offset. The checksum of the batch covers all
# of it as it is stored, so it can be checked without a key.
_PREFIX: Final = Struct("<12s12sq")
PREFIX_BYTES: Final = 32
TAG_BYTES: Final = 16
# What encryption adds to a batch.
OVERHEAD_BYTES: Final = PREFIX_BYTES + TAG_BYTES
_END_OFFSET: Final = Struct("<q")
END_OFFSET_AT: Final = 24

KEY_BYTES: Final = 32
# As the header has room for. 0 means not encrypted.
MAX_KEY_ID: Final = (1 << 32) - 1
RANDOM_BYTES: Final = 12
_DATA_KEY: Final = b"penstock data key 1"
_CHECK: Final = b"penstock key check 1"
CHECK_BYTES: Final = 16

# A data key seals at most so many batches. Two random nonces of 96 bits among 2^20 are equal with a
# probability of 2^-57; over 2^45 batches, more than a server ever writes, that adds up to 2^-32.
MAX_SEALED: Final = 1 << 20
# Data keys that are kept for reading: one for each segment that is read; ten microseconds to derive one.
KEPT_DATA_KEYS: Final = 1024

Random = Callable[[int], bytes]


def _derived(key: bytes, salt: bytes, purpose: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, purpose).derive(key)


def check_value(key: bytes) -> bytes:
    """Tells one key from another, and nothing of the key itself."""
    return _derived(key, b"", _CHECK, CHECK_BYTES)


def end_offset_of(body: bytes, position: int) -> int:
    """Of the encrypted body at this position: the offset behind its last record."""
    if len(body) - position < PREFIX_BYTES:
        raise BatchError("shorter than an encrypted batch")
    return int(_END_OFFSET.unpack_from(body, position + END_OFFSET_AT)[0])


class Sealer:
    """Seals batches with one key, under a data key of its own that nobody else ever draws again.

    There is one for each segment that is written: a process that goes on with a segment of another one
    draws a new data key. Not thread-safe: the holder of the write lock uses it.
    """

    def __init__(self, key_id: int, key: bytes, random: Random) -> None:
        self.key_id: Final = key_id
        self._key = key
        self._random = random
        self._salt = b""
        self._data_key: AESGCM | None = None
        self._left = 0

    def seal(
        self, batch: Batch, base_offset: int, durable_offset: int, salt: int, end_offset: int = -1
    ) -> tuple[bytes, Batch]:
        """The header for this place in a log, and the batch as it is stored. `end_offset` where records
        were removed from between the others."""
        if self._data_key is None or not self._left:
            self._salt = self._random(RANDOM_BYTES)
            self._data_key = AESGCM(_derived(self._key, self._salt, _DATA_KEY, KEY_BYTES))
            self._left = MAX_SEALED
        self._left -= 1
        end = end_offset if end_offset >= 0 else base_offset + batch.count
        nonce = self._random(RANDOM_BYTES)
        rest = batch.rest(base_offset, durable_offset, salt, self.key_id)
        sealed = self._data_key.encrypt(nonce, batch.body, rest + _END_OFFSET.pack(end))
        stored = batch.with_body(_PREFIX.pack(self._salt, nonce, end) + sealed)
        return stored.stamped(rest), stored


class Keyring:
    """All keys by their ids, and the one that new batches are encrypted with. Thread-safe."""

    def __init__(
        self, keys: Mapping[int, bytes] | None = None, current: int = 0, random: Random = os.urandom
    ) -> None:
        """`current` 0: nothing is encrypted."""
        self._random = random
        self.by_id: Mapping[int, bytes] = {}
        self.current = 0
        self._data_keys: OrderedDict[tuple[int, bytes], AESGCM] = OrderedDict()
        self.replace(keys or {}, current)

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def __repr__(self) -> str:
        return f"Keyring({sorted(self.by_id)}, current={self.current})"

    def replace(self, keys: Mapping[int, bytes], current: int) -> None:
        assert not current or current in keys, "the current key is one of the keys"
        self.by_id = dict(keys)
        self.current = current
        self._data_keys = OrderedDict()

    def ids(self) -> list[int]:
        return sorted(self.by_id)

    def checks(self) -> dict[int, bytes]:
        """The check values of all keys."""
        return {key_id: check_value(key) for key_id, key in self.by_id.items()}

    def sealer(self, key_id: int) -> Sealer:
        """With a data key of its own. Raises UnknownKeyId."""
        key = self.by_id.get(key_id)
        if key is None:
            raise UnknownKeyId(key_id)
        return Sealer(key_id, key, self._random)

    def open_body(self, header: BatchHeader, buffer: bytes, position: int) -> bytes:
        """The body at `position`, decrypted; its header lies just before it. Raises UnknownKeyId, and
        BatchError for what was changed by somebody without the key."""
        end = position + header.length - header.size
        if end > len(buffer) or end - position < OVERHEAD_BYTES:
            raise BatchError("shorter than an encrypted batch")
        salt, nonce, end_offset = _PREFIX.unpack_from(buffer, position)
        data_key = self._data_key(header.key_id, salt)
        rest = buffer[position - header.size + CRC_FROM : position]
        try:
            return data_key.decrypt(
                nonce,
                memoryview(buffer)[position + PREFIX_BYTES : end],
                rest + _END_OFFSET.pack(end_offset),
            )
        except InvalidTag:
            raise BatchError(
                f"cannot be decrypted with key {header.key_id}: the bytes were changed, or were"
                " encrypted with another key of this id"
            ) from None

    def _data_key(self, key_id: int, salt: bytes) -> AESGCM:
        place = key_id, salt
        kept = self._data_keys
        found = kept.get(place)
        if found is None:
            key = self.by_id.get(key_id)
            if key is None:
                raise UnknownKeyId(key_id)
            found = AESGCM(_derived(key, salt, _DATA_KEY, KEY_BYTES))
            kept[place] = found
            while len(kept) > KEPT_DATA_KEYS:
                try:
                    kept.popitem(last=False)
                except KeyError:  # another thread was faster
                    break
        return found


NO_KEYS: Final = Keyring()
