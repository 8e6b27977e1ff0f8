"""`penstock pipeline replay`: rows of a table, sent to a topic. Starts no JVM."""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.output import print_json
from penstock.cli.places import parse_place

TIMES_HELP: Final = "such as 2026-01-31T12:00, or -10m ago."
_SPAN: Final = re.compile(r"(\d{1,9}):(\d{1,18})-(\d{1,18})")


def replay(
    directory: Annotated[Path, typer.Argument(help="Directory of the project.")],
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic to send to.")],
    topic: Annotated[
        str | None, typer.Option(help="Only records that came from this topic.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Stored from then on, {TIMES_HELP}")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Stored before, {TIMES_HELP}")
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTITION:FIRST-END",
            help="Only these offsets, END is not one of them; may be given again.",
        ),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make a missing topic.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be sent.")
    ] = False,
    flight: Annotated[
        str | None, typer.Option(help="host:port of the broker's Flight listener.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send rows of a table to a topic, all at once and each once. Run it again if it was cut off."""
    from penstock.spark.pipeline.connecting import broker_of
    from penstock.spark.pipeline.project import load_project
    from penstock.spark.pipeline.repeating.records import Wanted
    from penstock.spark.pipeline.repeating.replay import Replay

    wanted = Wanted(topic, _time_us(since, "--since"), _time_us(until, "--until"), _spans(offsets))
    project = load_project(directory)
    command = Replay(project, table, to, wanted)
    counts = command.count()
    if wanted.offsets and len(counts) > 1:
        raise typer.BadParameter(
            f"--offsets: {table} has such offsets of {', '.join(sorted(counts))}; choose one by --topic"
        )
    records = sum(counts.values())
    if dry_run or not records:
        told = {"table": table, "to": to, "records": records, "sent": False}
        _tell(told, as_json, f"{records} records of {table} would go to {to}; nothing is sent")
        return
    done = command.send(broker_of(project, flight), create=create)
    told = {"table": table, "to": to, "records": done.records, "sent": True}
    again = ", by an earlier run of this command that was cut off" if done.finished else ""
    _tell(
        {**told, "finished": done.finished, "transaction": done.transaction},
        as_json,
        f"{done.records} records of {table} are in {to}{again}",
    )


def _tell(told: dict[str, object], as_json: bool, line: str) -> None:
    if as_json:
        print_json(told)
    else:
        typer.echo(line, err=True)


def _time_us(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    place = parse_place(text, option)
    if place.time_us is None:
        raise typer.BadParameter(f"{option} {text!r}: expected a time, {TIMES_HELP}")
    return place.time_us


def _spans(given: list[str] | None) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for text in given or ():
        parts = _SPAN.fullmatch(text.strip())
        if parts is None or int(parts[2]) >= int(parts[3]):
            problem = "expected PARTITION:FIRST-END, as 0:100-200, which is 100 to 199"
            raise typer.BadParameter(f"--offsets {text}: {problem}")
        found.setdefault(int(parts[1]), []).append((int(parts[2]), int(parts[3])))
    return found
