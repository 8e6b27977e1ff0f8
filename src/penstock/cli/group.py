"""`penstock group ls|describe|reset|delete`: consumer groups and how far they are, over the HTTP API."""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import add_listing, print_json, print_table
from penstock.cli.places import parse_place
from penstock.cli.target import Target, with_target
from penstock.cli.topic import find_topic

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.cli.http import Api

Name = Annotated[str, typer.Argument(help="Name of the group.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
COLUMNS = ("topic", "partition", "offset", "latest", "lag")
MEMBER_COLUMNS = ("member", "topic", "user", "partitions", "silent")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Consumer groups: offsets, lag, reset, delete.", no_args_is_help=True)
    add_listing(group, with_target(list_groups))
    group.command("describe")(with_target(describe_group))
    group.command("reset")(with_target(reset_group))
    group.command("delete")(with_target(delete_group))
    app.add_typer(group, name="group")


def list_groups(target: Target, as_json: AsJson = False) -> None:
    """Show all groups, with the lag over all their topics."""
    groups = target.api().list("groups")
    rows = [
        {
            "name": group["name"],
            "topics": len({place["topic"] for place in group["offsets"]}),
            "partitions": len(group["offsets"]),
            "members": group["members"],
            "lag": sum(place["lag"] for place in group["offsets"]),
            "committed": group.get("committed_us") if as_json else _moment(group),
        }
        for group in groups
    ]
    print_table(rows, ("name", "topics", "partitions", "members", "lag", "committed"), as_json)


def _moment(group: Any) -> str:
    """When it has committed last."""
    from penstock.cli.output import moment

    found = group.get("committed_us")
    return "-" if found is None else moment(found)


def describe_group(target: Target, name: Name, as_json: AsJson = False) -> None:
    """Show a group: its offsets and lag, its members and which partitions each of them reads."""
    _show(_find_group(target.api(), name), as_json)


def reset_group(
    target: Target,
    name: Name,
    topic: Annotated[str, typer.Option("-t", "--topic", help="Which topic.")],
    to: Annotated[
        str, typer.Option(metavar="PLACE", help="earliest, latest, an offset, a time, or -10m ago.")
    ],
    partition: Annotated[int | None, typer.Option("-p", "--partition", min=0)] = None,
    as_json: AsJson = False,
) -> None:
    """Move a group to another place in a topic: in all partitions, or in one."""
    from penstock.cli.http import segment

    place = parse_place(to, "--to")
    if place.last is not None:
        raise typer.BadParameter(f"--to {to}: give earliest, latest, an offset or a time")
    wanted: Any = place.word if place.offset is None else place.offset
    if place.time_us is not None:
        wanted = {"time_us": place.time_us}
    api = target.api()
    find_topic(api, topic)
    body: dict[str, Any] = {"topic": topic, "to": wanted}
    if partition is not None:
        body["partition"] = partition
    _show(api.call("POST", f"/groups/{segment(name)}/reset", body), as_json)


def delete_group(target: Target, name: Name) -> None:
    """Forget a group and its offsets; whoever commits under its name later makes it anew."""
    _call_group(target.api(), "DELETE", name)
    typer.echo(f"group {name} is deleted", err=True)


def _show(group: Any, as_json: bool) -> None:
    if as_json:
        print_json(group)
        return
    columns = (*COLUMNS, "member") if group["members"] else COLUMNS
    print_table(group["offsets"], columns, False)
    for topic, count in group["connections"].items():
        typer.echo(f"{count} connection(s) read {topic} for the group", err=True)
    if group["members"]:
        rows = [
            {
                **one,
                "partitions": " ".join(map(str, one["partitions"])) or "-",
                "silent": f"{one['silent_ms'] / 1000:.1f} of {one['timeout_ms'] / 1000:g} s",
            }
            for one in group["members"]
        ]
        typer.echo()
        print_table(rows, MEMBER_COLUMNS, False)


def _find_group(api: "Api", name: str) -> Any:
    return _call_group(api, "GET", name)


def _call_group(api: "Api", method: str, name: str) -> Any:
    """The answer of a call on a group; if there is none, an error that names the nearest there is."""
    from penstock.cli.http import ApiNotFound, segment

    try:
        return api.call(method, f"/groups/{segment(name)}")
    except ApiNotFound as error:
        names = [group["name"] for group in api.list("groups")]
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else "penstock group ls shows all"
        text = f"no group named {name!r}; {hint}"
        raise ApiNotFound(error.url, error.status, error.name, text) from None
