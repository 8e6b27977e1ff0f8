"""`penstock log`: looks at the log on disk, and makes lost metadata anew. No server may run on it."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.log.batch.encryption import Keyring
    from penstock.log.partitions.verify import Report
    from penstock.log.storage.scan import Damage


class NoTopics(PenstockError):
    exit_code = 2

    path: str

    line = "{path} is no data directory: it has no directory of topics"


def register(app: typer.Typer) -> None:
    log = typer.Typer(help="Look at the log on disk.", no_args_is_help=True)
    log.command("verify")(verify_log)
    log.command("rebuild-metadata")(rebuild_metadata)
    app.add_typer(log, name="log")


def _one_directory(directory: str | None, data: str | None) -> str:
    """`serve` and `key` take the directory by --data, so people write that here too."""
    if (directory is None) == (data is None):
        raise typer.BadParameter("name one directory, as it is or with --data")
    return (directory or data or "").rstrip("/") or "/"


Data = Annotated[str | None, typer.Option("--data", metavar="DIR", help="The same, as an option.")]


def verify_log(
    directory: Annotated[
        str | None, typer.Argument(help="A data directory, or one partition of it.")
    ] = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "-c", help="Configuration of the server, for its encryption.keys."
        ),
    ] = None,
) -> None:
    """Check every batch, every index and the metadata; exit with 1 when anything is damaged.

    Reads everything and changes nothing. The server must not run on the directory. A torn tail is what
    a crash leaves: the next start cuts it, and it holds nothing that was ever acknowledged. The checksums
    of encrypted batches are checked too; what they hold, only with the keys of --config.
    """
    import msgspec

    from penstock.log.partitions.verify import data_directory_of, verify
    from penstock.log.storage.files import RealFiles
    from penstock.log.storage.lock import locked_for_reading

    files = RealFiles()
    path = _one_directory(directory, data)
    with locked_for_reading(data_directory_of(files, path)):
        report = verify(files, path, _keyring(config))
    if as_json:
        content = {"directory": path, "clean": report.clean}
        typer.echo(msgspec.json.encode({**content, **msgspec.to_builtins(report)}).decode())
    else:
        _print(path, report)
    if not report.clean:
        raise typer.Exit(1)


def _keyring(config: str | None) -> "Keyring":
    import os

    from penstock.log.batch.encryption import Keyring

    if config is None:
        return Keyring()

    from penstock.server.config.encryption import read_keys
    from penstock.server.config.loading import load_config

    keys = read_keys(load_config(config, os.environ, {}).config.encryption, os.environ)
    return Keyring(keys.by_id, keys.current)


def rebuild_metadata(
    directory: Annotated[
        str | None, typer.Argument(help="A data directory without metadata.db.")
    ] = None,
    data: Data = None,
) -> None:
    """Make a lost metadata.db anew from the directories of the topics.

    Topics come back with their records, and with their settings where the file topic.json tells them.
    Keys, users, topic rules, committed offsets, unacknowledged messages of BlipMQ subscribers and open
    transactions do not. The key dev-key stays off: make a key with `penstock key create` before the next
    start.
    """
    import time

    from penstock.log.metadata.rebuild import rebuild
    from penstock.log.storage.files import RealFiles
    from penstock.log.storage.lock import DataDirectoryLock
    from penstock.log.storage.names import TOPICS_DIRECTORY

    files = RealFiles()
    path = _one_directory(directory, data)
    if not files.exists(f"{path}/{TOPICS_DIRECTORY}"):
        raise NoTopics(path)
    with DataDirectoryLock(path):
        topics, left = rebuild(files, path, time.time_ns() // 1000)
    for topic in topics:
        known = "" if topic.described else "; its settings are not known: it has the defaults"
        partitions = f"{topic.partitions} partition{'s' if topic.partitions > 1 else ''}"
        typer.echo(f"topic {topic.name}: {partitions}{known}")
    for one in left:
        typer.echo(f"{path}/{TOPICS_DIRECTORY}/{one.directory}: left alone: {one.reason}")
    count = f"{len(topics)} topic{'' if len(topics) == 1 else 's'}"
    typer.echo(
        f"{count} taken back; keys and committed offsets are not: make a key before you start"
    )


def _print(path: str, report: "Report") -> None:
    if report.metadata is not None:
        typer.echo(f"{path}/metadata.db: {report.metadata}")
    for damage in report.damages:
        typer.echo(_line(damage))
    for torn in report.torn:
        size = torn.end_position - torn.position
        typer.echo(
            f"{torn.path}: byte {torn.position}: torn tail of {size} bytes,"
            f" cut at the next start: {torn.reason}"
        )
    for key_id, batches in sorted(report.batches_by_key.items()):
        if key_id:
            typer.echo(f"{batches} batches are encrypted with key {key_id}")
    count = len(report.damages) + (report.metadata is not None)
    verdict = f"{count} damaged {'place' if count == 1 else 'places'}" if count else "clean"
    typer.echo(
        f"{report.partitions} partitions, {report.segments} segments, {report.batches} batches,"
        f" {report.records} records, {report.size_bytes} bytes: {verdict}"
    )


def _line(damage: "Damage") -> str:
    place = f"{damage.path}: byte {damage.position}: {damage.reason}"
    if damage.first_offset < 0:
        return f"{place}; no offsets are lost"
    last = damage.next_offset - 1
    if last < damage.first_offset:
        return f"{place}; at offset {damage.first_offset}"
    return f"{place}; offsets {damage.first_offset} to {last} cannot be read"
