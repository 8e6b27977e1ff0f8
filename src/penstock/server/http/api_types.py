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
