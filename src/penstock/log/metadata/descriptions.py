"""A small file in the directory of each topic that says what the topic is: name, id, partitions, settings.

The metadata is the truth. The file is for the day on which the metadata is lost: `penstock log
rebuild-metadata` (rebuild.py) takes topics back from it. It is written behind the appends, so it may be a
minute old; a topic without records has no directory and no file.
"""

from typing import Final

import msgspec

from penstock.log.metadata.kinds import TopicRecord
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import FileSystem
from penstock.log.storage.segment import read_small_file, write_small_file

DESCRIPTION_FILE: Final = "topic.json"


class Description(msgspec.Struct, frozen=True):
    """As JSON, for people too. Fields that are added later need a default."""

    name: str
    id: int
    partitions: int
    settings: TopicSettings
    created_us: int

    @classmethod
    def of(cls, name: str, record: TopicRecord) -> "Description":
        return cls(name, record.id, record.partitions, record.settings, record.created_us)

    def record(self, directory: str) -> TopicRecord:
        return TopicRecord(self.id, directory, self.partitions, self.settings, self.created_us)


def write_description(files: FileSystem, directory: str, description: Description) -> None:
    """Durable on return; an old one is replaced as a whole."""
    path = f"{directory}/{DESCRIPTION_FILE}"
    content = msgspec.json.format(msgspec.json.encode(description), indent=1) + b"\n"
    if read_small_file(files, path) != content:
        write_small_file(files, path, content)


def read_description(files: FileSystem, directory: str) -> Description | None:
    """None when there is none, or none that can be read."""
    data = read_small_file(files, f"{directory}/{DESCRIPTION_FILE}")
    try:
        return None if data is None else msgspec.json.decode(data, type=Description)
    except msgspec.DecodeError:
        return None
