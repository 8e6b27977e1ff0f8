"""`penstock key create|list|revoke|hash`: API keys, on a running server or in a data directory.

Without --data it asks the HTTP API of a server. With --data it works on the metadata itself, for which
it holds the lock of the data directory, so no server can be running there; that way a server
can get its first keys before it ever starts. A new key is all that `create` writes to stdout.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple, TypeVar

import msgspec
import typer

from penstock.cli.output import add_listing
from penstock.cli.target import Target, with_target
from penstock.errors import ExitCode, PenstockError

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.broker.access.access import Access, Principal
    from penstock.broker.access.accounts import Accounts

KEYS_PATH: Final = "/keys"
# The largest part of a list that the server gives: more keys than anybody has.
ALL_KEYS_PATH: Final = f"{KEYS_PATH}?limit=10000"

Data = Annotated[
    str | None, typer.Option("--data", metavar="DIR", help="Work on this data directory instead.")
]
Name = Annotated[str, typer.Argument(help="Name of the key.")]
Answer = TypeVar("Answer")


class ListedKey(msgspec.Struct, frozen=True):
    name: str
    role: str
    topics: tuple[str, ...]
    created_us: int | None = None
    revoked_us: int | None = None
    source: str = "stored"


class KeyList(msgspec.Struct, frozen=True):
    keys: tuple[ListedKey, ...]


class CreatedKey(msgspec.Struct, frozen=True):
    key: str

    def __repr__(self) -> str:
        return "CreatedKey()"


class NoSuchKey(PenstockError):
    exit_code: ClassVar[int] = ExitCode.NOT_FOUND

    text: str

    def __str__(self) -> str:
        return self.text


class NoData(PenstockError):
    directory: str

    line = "{directory} holds no Penstock data; give the server's data directory"


class HeldByServer(PenstockError):
    reason: str

    line = "{reason}; without --data this command asks the running server"


class BadKey(PenstockError):
    limit: int

    line = "give a key of 1 to {limit} bytes of UTF-8 on stdin"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)
    group.command("create")(with_target(create_key))
    add_listing(group, with_target(list_keys))
    group.command("revoke")(with_target(revoke_key))
    group.command("hash")(hash_key)
    app.add_typer(group, name="key")


def create_key(
    target: Target,
    name: Name,
    role: Annotated[str, typer.Option(help="admin, user, writer, reader or guest.")] = "user",
    topics: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Such as 'orders.*'; repeat for more. Default: all."),
    ] = None,
    data: Data = None,
) -> None:
    """Make a key and print it, once and never again."""
    from penstock.broker.access.access import ALL_TOPICS, check_key

    rules = tuple(topics or ALL_TOPICS)
    check_key(name, role, rules)
    others: tuple[ListedKey, ...] | None = None
    if data is not None:
        with opened(data, create=True) as offline:
            secret = offline.accounts.create_key(offline.by, name, role, rules)
            others = _listed(offline.access)
    else:
        body = {"name": name, "role": role, "topics": rules}
        secret = _ask(target, "POST", KEYS_PATH, CreatedKey, body).key
    typer.echo(
        f"API key {name!r} ({role}, topics {', '.join(rules)}). Keep it, it is not shown again:",
        err=True,
    )
    typer.echo(secret)
    if not _can_manage(ListedKey(name, role, rules)):
        _warn_without_admin(_asked_keys(target) if others is None else others, data)


def _warn_without_admin(found: tuple[ListedKey, ...], data: str | None) -> None:
    """The first key ends the server's own dev-key: without a key of an admin nobody can manage it."""
    if not found or any(map(_can_manage, found)):
        return
    where = "" if data is None else f" --data {data}"
    typer.echo(
        "No key has the role admin yet, and dev-key ends at the next start of the server;"
        f" make one now: penstock key create NAME --role admin{where}",
        err=True,
    )


def _can_manage(key: ListedKey) -> bool:
    """True if the key may make other keys: an admin for some topics only may not."""
    from penstock.broker.access.access import ALL_TOPICS

    everywhere = not key.topics or key.topics == ALL_TOPICS
    return key.role == "admin" and everywhere and key.revoked_us is None


def _asked_keys(target: Target) -> tuple[ListedKey, ...]:
    """All keys; none if the server does not tell, as the key that it made is what counts."""
    try:
        return _ask(target, "GET", ALL_KEYS_PATH, KeyList).keys
    except PenstockError:
        return ()


def list_keys(
    target: Target,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    data: Data = None,
) -> None:
    """Show names, roles and topics of all keys; never the keys."""
    if data is not None:
        with opened(data) as offline:
            found = KeyList(_listed(offline.access))
    else:
        found = _ask(target, "GET", ALL_KEYS_PATH, KeyList)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    rows = [("NAME", "ROLE", "TOPICS", "SINCE", "STATE")]
    rows += [
        (key.name, key.role, " ".join(key.topics), day(key.created_us), _state(key))
        for key in found.keys
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def revoke_key(
    target: Target,
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Also if no key is left that may manage keys.")
    ] = False,
    data: Data = None,
) -> None:
    """Make a key useless, at once, also on connections that are open."""
    if data is not None:
        from penstock.broker.errors import BrokerError, Code

        with opened(data) as offline:
            try:
                offline.accounts.revoke_key(offline.by, name, force=force)
            except BrokerError as error:
                if error.code is Code.UNKNOWN_KEY:
                    raise NoSuchKey(str(error)) from None
                raise
    else:
        from penstock.cli.http import segment

        path = f"{KEYS_PATH}/{segment(name)}"
        target.api().call("DELETE", path, query={"force": "true"} if force else None)
    typer.echo(f"API key {name!r} is revoked", err=True)


def hash_key() -> None:
    """Read a key from stdin and print its hash, for `hash` of a key in the configuration file."""
    from penstock.broker.access.keys import MAX_SLOW_KEY_BYTES, hash_slowly

    key = read_secret("Key", MAX_SLOW_KEY_BYTES)
    if key is None:
        raise BadKey(MAX_SLOW_KEY_BYTES)
    typer.echo(hash_slowly(key))


def read_secret(what: str, max_bytes: int, *, twice: bool = False) -> str | None:
    """From the terminal, without showing it, or from stdin. None when it is empty, too long or no UTF-8."""
    if sys.stdin.isatty():
        prompt = typer.prompt(what, hide_input=True, err=True, confirmation_prompt=twice)
        secret = str(prompt).encode("utf-8", "surrogateescape")
    else:
        # Two more for the end of the line, one more to see that it is too long.
        secret = sys.stdin.buffer.read(max_bytes + 3)
    try:
        text = secret.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        return None
    return text if 0 < len(text.encode()) <= max_bytes else None


def _ask(target: Target, method: str, path: str, kind: type[Answer], body: Any = None) -> Answer:
    """The server's answer as `kind`; one that has another shape is not of our server."""
    from penstock.cli.http import NotOurServer

    answer = target.api().call(method, path, body)
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError:
        raise NotOurServer(target.http, 200, "", "an answer of another shape") from None


def _listed(access: "Access") -> tuple[ListedKey, ...]:
    return msgspec.convert(access.list_keys(), tuple[ListedKey, ...], from_attributes=True)


def day(time_us: int | None) -> str:
    if time_us is None:
        return "-"
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d")


def _state(key: ListedKey) -> str:
    if key.revoked_us is not None:
        return f"revoked {day(key.revoked_us)}"
    return "active" if key.source == "stored" else f"active ({key.source})"


class Offline(NamedTuple):
    """A data directory that no server uses: its keys and users, and who changes them."""

    access: "Access"
    accounts: "Accounts"
    by: "Principal"


def _system_user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


@contextmanager
def opened(directory: str, *, create: bool = False) -> "Iterator[Offline]":
    """What is changed is noted for the audit trail."""
    import os
    import time

    from penstock.broker.access.access import Access, Principal
    from penstock.broker.access.accounts import Accounts
    from penstock.broker.audit.offline import OfflineTrail
    from penstock.broker.options import BrokerOptions
    from penstock.log.metadata.rebuild import check_metadata_is_there
    from penstock.log.metadata.store import MetadataStore
    from penstock.log.storage.files import RealFiles
    from penstock.log.storage.lock import DataDirectoryInUse, DataDirectoryLock
    from penstock.log.storage.names import METADATA_FILE

    path = os.path.join(directory, METADATA_FILE)
    if create:
        RealFiles().make_directory(directory)
        check_metadata_is_there(RealFiles(), directory)
    elif not os.path.exists(path):
        raise NoData(directory)
    try:
        lock = DataDirectoryLock(directory)
    except DataDirectoryInUse as error:
        raise HeldByServer(str(error)) from error
    with lock, _quiet("penstock.log.metadata"):
        metadata = MetadataStore(path)
        try:
            nobody = Principal("anonymous", "reader")
            access = Access(metadata, (), development_key=False, anonymous=nobody)
            trail = OfflineTrail(metadata, lambda: time.time_ns() // 1000, _system_user())
            limits = BrokerOptions()
            accounts = Accounts(
                access, lambda: limits.max_users, lambda: limits.max_topic_rules, trail
            )
            yield Offline(access, accounts, nobody)
        finally:
            metadata.close()


@contextmanager
def _quiet(name: str) -> "Iterator[None]":
    """A write that fails is logged and raised. The command line configures no logging, so Python itself
    would print the log line, and the command would print the error again."""
    import logging

    logger = logging.getLogger(name)
    silent = logging.NullHandler()
    logger.addHandler(silent)
    try:
        yield
    finally:
        logger.removeHandler(silent)
