"""`penstock audit ls|tail|export`: the audit trail of a server, over the HTTP API.

`tail` reads the topic `_audit` as `penstock cat` reads any other.
"""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import add_listing, print_table, standard_output
from penstock.cli.places import parse_place
from penstock.cli.target import Target, with_target

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from collections.abc import Iterator

    from penstock.cli.http import Api

AUDIT_TOPIC: Final = "_audit"
COLUMNS: Final = ("time", "type", "user", "address", "door", "resource", "result", "details")
# How often `tail --follow` looks.
LOOK_S: Final = 0.5
TIMES_HELP: Final = "such as 2026-01-31T12:00, or -10m ago."

Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help=f"From, {TIMES_HELP}")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help=f"Up to, {TIMES_HELP}")]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="Such as auth.failure or 'topic.*'; may be given again."),
]
User = Annotated[str, typer.Option("--who", help="Name of the user or key; * is any text.")]
Resource = Annotated[
    str, typer.Option("--resource", help="Name of what it was done to; * is any text.")
]
Result = Annotated[str, typer.Option("--result", help="success, failure or denied.")]
Search = Annotated[str, typer.Option("--search", help="Text to look for anywhere.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The audit trail: list, tail, export.", no_args_is_help=True)
    add_listing(group, with_target(list_events))
    group.command("tail")(with_target(tail))
    group.command("export")(with_target(export))
    app.add_typer(group, name="audit")


def list_events(
    target: Target,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=5_000)] = 100,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Leave out the newest.")] = 0,
    since: Since = None,
    until: Until = None,
    types: Types = None,
    who: User = "",
    resource: Resource = "",
    result: Result = "",
    search: Search = "",
    as_json: AsJson = False,
) -> None:
    """Show events, the newest first."""
    filters = _filters(since, until, types, who, resource, result, search)
    found = target.api().get("/audit", limit=count, offset=offset, **filters)
    events = found["events"]
    if not as_json:
        events = [{**one, "details": _details(one["details"])} for one in events]
    print_table(events, COLUMNS, as_json)
    if found["has_more"]:
        shown = f"{len(events)} of {found['total']} shown"
        typer.echo(f"{shown}; -n, --offset and --since show others", err=True)
    if not found["complete"]:
        typer.echo("older events were not looked at; give --until", err=True)


def tail(
    target: Target,
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="Begin so far back.")] = 10,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl-C.")
    ] = False,
) -> None:
    """Print the newest events as JSON lines, in their order."""
    from penstock.cli.http import ApiNotFound, segment

    api, output = target.api(), standard_output()
    path = f"/topics/{segment(AUDIT_TOPIC)}"
    offset: int | None = None
    while True:
        try:
            if offset is None:
                ends = api.get(path)["partition_details"][0]
                offset = max(ends["latest"] - count, ends["earliest"])
            for page in _pages(api, f"{path}/records", offset):
                output.write(b"".join(_value(one) + b"\n" for one in page["records"]))
                offset = page["next_offset"]
            output.flush()
        except ApiNotFound:  # made with the first event
            if not follow:
                raise
        if not follow:
            return
        time.sleep(LOOK_S)


def export(
    target: Target,
    form: Annotated[
        str, typer.Option("--format", help="json (one object a line) or csv.")
    ] = "json",
    since: Since = None,
    until: Until = None,
    types: Types = None,
    who: User = "",
    resource: Resource = "",
    result: Result = "",
    search: Search = "",
) -> None:
    """Write all events that fit to stdout, the oldest first."""
    filters = _filters(since, until, types, who, resource, result, search)
    target.api().stream("/audit/export", standard_output(), {"format": form, **filters})
    sys.stdout.flush()


def _filters(
    since: str | None,
    until: str | None,
    types: list[str] | None,
    who: str,
    resource: str,
    result: str,
    search: str,
) -> dict[str, Any]:
    given = {
        "start": _time_us(since, "--since"),
        "end": _time_us(until, "--until"),
        "types": ",".join(types or []),
        "user": who,
        "resource": resource,
        "result": result,
        "search": search,
    }
    return {name: value for name, value in given.items() if value not in ("", None)}


def _time_us(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    place = parse_place(text, option)
    if place.time_us is None:
        raise typer.BadParameter(f"{option} {text!r}: expected a time, {TIMES_HELP}")
    return place.time_us


def _details(details: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in details.items())


def _pages(api: "Api", path: str, offset: int) -> "Iterator[Any]":
    """Up to the end as it is now."""
    while True:
        page = api.get(path, offset=offset, limit=1_000)
        if page["records"]:
            yield page
        offset = page["next_offset"]
        if offset >= page["end_offset"]:
            return


def _value(record: Any) -> bytes:
    import base64

    return base64.b64decode(record["value"] or "")
