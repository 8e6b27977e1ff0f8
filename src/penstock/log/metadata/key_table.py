"""Which keys of encryption the data needs: checked at start and at every change of keys, by metadata alone.

A key gets a generation when it becomes the current one: a number that grows, in its record, before any
batch is written with it. The record of a topic has the generation since which its files, and what is staged
for it, may be encrypted (`keys_since`, 0: nothing is). So a topic needs every key of this generation or a
later one, a new current key changes one record however many topics there are, and a start compares numbers.
When all of a topic is under the current key, its `keys_since` rises, and older keys are no longer needed.

The record of a key also has its check value, which tells a wrong key from the right one.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from penstock.log.batch.encryption import Keyring, check_value
from penstock.log.engine import Keys
from penstock.log.errors import KeyMissing, KeyWrong
from penstock.log.records import Edit, Metadata, Space

ENCRYPTION_KEYS: Final = "encryption_keys"


class KeyRecord(msgspec.Struct, frozen=True):
    """Named as the id of the key. `check` is empty where the metadata was rebuilt: it is not known then."""

    generation: int
    check: bytes


class NeedsKeys(Protocol):
    """A topic of the catalogue."""

    @property
    def keys_since(self) -> int: ...
    @property
    def name(self) -> str: ...


class KeyTable:
    """The keys of a data directory. `adopt` waits for the disk; one call at a time."""

    def __init__(self, metadata: Metadata, keyring: Keyring) -> None:
        self._metadata = metadata
        self._space = Space(metadata, ENCRYPTION_KEYS, KeyRecord)
        self._keyring = keyring
        self._records = {int(one.name): one.value for one in self._space.all()}

    def check(self, keys: Keys, topics: Iterable[NeedsKeys]) -> None:
        """Raises what `adopt` raises, and changes nothing."""
        self._plan(keys, topics)

    def adopt(self, keys: Keys, topics: Iterable[NeedsKeys]) -> int:
        """Takes these keys into use, if all that is needed is among them. Gives the generation of the
        current one. Raises KeyMissing, KeyWrong: then nothing is changed."""
        records, edits = self._plan(keys, topics)
        if edits:
            self._metadata.change(edits).result()
        self._records = records
        self._keyring.replace(keys.by_id, keys.current)
        return records[keys.current].generation if keys.current else 0

    def _plan(
        self, keys: Keys, topics: Iterable[NeedsKeys]
    ) -> tuple[dict[int, KeyRecord], list[Edit]]:
        """The records as they will be, and what has to be written for it."""
        oldest: dict[int, str] = {}
        for topic in topics:
            if topic.keys_since:
                oldest.setdefault(topic.keys_since, topic.name)
        records = dict(self._records)
        edits: list[Edit] = []
        for key_id, record in self._records.items():
            user = next((oldest[one] for one in sorted(oldest) if one <= record.generation), None)
            key = keys.by_id.get(key_id)
            if user is not None and key is None:
                raise KeyMissing(user, key_id)
            if key is None:
                del records[key_id]
                edits.append(self._space.delete(str(key_id)))
            elif record.check != check_value(key):
                if user is not None and record.check:
                    raise KeyWrong(user, key_id)
                records[key_id] = KeyRecord(record.generation, check_value(key))
                edits.append(self._space.put(str(key_id), records[key_id]))
        last = max((*oldest, *(one.generation for one in records.values())), default=0)
        current = records.get(keys.current)
        if keys.current and (current is None or current.generation < last):
            last += 1
            records[keys.current] = KeyRecord(last, check_value(keys.by_id[keys.current]))
            edits.append(self._space.put(str(keys.current), records[keys.current]))
        return records, edits

    def ids_since(self, generation: int) -> list[int]:
        """The keys that a topic of this `keys_since` may need."""
        if not generation:
            return []
        return sorted(i for i, one in self._records.items() if one.generation >= generation)

    def topics_by_key(self, topics: Iterable[NeedsKeys]) -> dict[int, int]:
        """How many topics may need each key."""
        found: Counter[int] = Counter(dict.fromkeys(self._keyring.ids(), 0))
        for generation, number in Counter(topic.keys_since for topic in topics).items():
            for key_id in self.ids_since(generation):
                found[key_id] += number
        return dict(found)
