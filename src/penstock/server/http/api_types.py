"""The bodies of HTTP requests, checked by msgspec. Answers are plain dictionaries, see api.py."""

from typing import Literal

import msgspec


class TopicRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partitions: int | None = None
    settings: dict[str, object] = {}


class TenantRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A tenant, or a namespace or cache with its tenant before it."""

    name: str


class TopicChange(msgspec.Struct, forbid_unknown_fields=True):
    settings: dict[str, object] = {}
    partitions: int | None = None


class RecordToPublish(msgspec.Struct, forbid_unknown_fields=True):
    """Key, value and the values of headers in the encoding of the request. No value: a deletion mark."""

    value: str | None
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


class PublishRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What stands beside the records holds for all of them. `schema`: one that they must fit, beside that
    which the topic is bound to."""

    records: tuple[RecordToPublish, ...]
    encoding: Literal["base64", "text"] = "base64"
    partition: int | None = None
    ttl_ms: int | None = None
    delay_ms: int | None = None
    schema: str | None = None


class StageRequest(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    records: tuple[RecordToPublish, ...]
    encoding: Literal["base64", "text"] = "base64"


class AtTime(msgspec.Struct, forbid_unknown_fields=True):
    time_us: int


class GroupReset(msgspec.Struct, forbid_unknown_fields=True):
    """`to`: "earliest", "latest", an offset, or a time."""

    topic: str
    to: str | int | AtTime
    partition: int | None = None


class GroupCommit(msgspec.Struct, forbid_unknown_fields=True):
    """`offset`: of the record that the group reads next."""

    topic: str
    offset: int
    partition: int = 0


class GroupJoin(msgspec.Struct, forbid_unknown_fields=True):
    """No `member`: a new one. `timeout_ms` 0: as the server likes."""

    topic: str
    member: str = ""
    timeout_ms: int = 0


class GroupMember(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    member: str


class ReplayRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`force`: also an entry that was replayed before."""

    id: str
    force: bool = False


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: str = "user"
    topics: tuple[str, ...] = ("*",)


class SchemaRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`compatibility`: of the name; it stays as it is, or is backward, where none is given."""

    name: str
    definition: str
    type: str = "json"
    compatibility: str | None = None


class SchemaChange(msgspec.Struct, forbid_unknown_fields=True):
    compatibility: str


class MessageToValidate(msgspec.Struct, forbid_unknown_fields=True):
    """One of the two: the message as text, or its bytes in Base64."""

    text: str | None = None
    base64: bytes | None = None
    version: int = 0


class UserRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    password: str
    roles: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"UserRequest({self.name!r})"


class UserChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is not given stays as it is."""

    roles: tuple[str, ...] | None = None
    enabled: bool | None = None


class PasswordChange(msgspec.Struct, forbid_unknown_fields=True):
    """`current`: for the own account."""

    password: str
    current: str = ""

    def __repr__(self) -> str:
        return "PasswordChange()"


class RuleRequest(msgspec.Struct, forbid_unknown_fields=True):
    public: bool = False
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
