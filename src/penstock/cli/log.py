"""`penstock log`: looks at the log on disk. Never changes it."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.log.partitions.verify import Report
    from penstock.log.storage.scan import Damage


def register(app: typer.Typer) -> None:
    log = typer.Typer(help="Look at the log on disk.", no_args_is_help=True)
    # A callback keeps `penstock log verify` a subcommand while it is the only one.
    log.callback()(_root)
    log.command("verify")(verify_log)
    app.add_typer(log, name="log")


def _root() -> None:
    """Look at the log on disk."""


def verify_log(
    directory: Annotated[str, typer.Argument(help="A data directory, or one partition of it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check every batch and every index; exit with 1 when anything is damaged.

    Reads everything and changes nothing. The server must not run on the directory. A torn tail is what
    a crash leaves: the next start cuts it, and it holds nothing that was ever acknowledged.
    """
    import msgspec

    from penstock.log.partitions.verify import data_directory_of, verify
    from penstock.log.storage.files import RealFiles
    from penstock.log.storage.lock import locked_for_reading

    files = RealFiles()
    path = directory.rstrip("/") or "/"
    with locked_for_reading(data_directory_of(files, path)):
        report = verify(files, path)
    if as_json:
        content = {"directory": path, "clean": not report.damages}
        typer.echo(msgspec.json.encode({**content, **msgspec.to_builtins(report)}).decode())
    else:
        _print(report)
    if report.damages:
        raise typer.Exit(1)


def _print(report: "Report") -> None:
    for damage in report.damages:
        typer.echo(_line(damage))
    for torn in report.torn:
        size = torn.end_position - torn.position
        typer.echo(
            f"{torn.path}: byte {torn.position}: torn tail of {size} bytes,"
            f" cut at the next start: {torn.reason}"
        )
    count = len(report.damages)
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
