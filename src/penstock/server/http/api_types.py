"""The bodies of HTTP requests, checked by msgspec. Answers are plain dictionaries, see api.py."""

import msgspec


class TopicRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partitions: int | None = None
    settings: dict[str, object] = {}


class TopicChange(msgspec.Struct, forbid_unknown_fields=True):
    settings: dict[str, object] = {}
    partitions: int | None = None


class AtTime(msgspec.Struct, forbid_unknown_fields=True):
    time_us: int


class GroupReset(msgspec.Struct, forbid_unknown_fields=True):
    """`to`: "earliest", "latest", an offset, or a time."""

    topic: str
    to: str | int | AtTime
    partition: int | None = None


class ReplayRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`force`: also an entry that was replayed before."""

    id: str
    force: bool = False


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: str = "user"
    topics: tuple[str, ...] = ("*",)
