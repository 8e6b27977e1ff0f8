"""`penstock topic ls|create|describe|delete|purge|set`, over the HTTP API."""

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli.output import add_listing, print_json, print_table
from penstock.cli.target import Target, with_target
from penstock.errors import ExitCode

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.cli.http import Api

Name = Annotated[str, typer.Argument(help="Name of the topic.")]
# The server's name of the error.
TOPIC_EXISTS: Final = "TOPIC_EXISTS"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
Partitions = Annotated[int | None, typer.Option("-p", "--partitions", min=1, help="How many.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the topic; repeat for more."),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, create, change, purge and delete topics.", no_args_is_help=True)
    add_listing(group, with_target(list_topics))
    group.command("create")(with_target(create_topic))
    group.command("describe")(with_target(describe_topic))
    group.command("delete")(with_target(delete_topic))
    group.command("purge")(with_target(purge_topic))
    group.command("set")(with_target(set_topic))
    app.add_typer(group, name="topic")


def list_topics(target: Target, as_json: AsJson = False) -> None:
    """Show all topics."""
    topics = list(target.api().list("topics"))
    print_table(topics, ("name", "partitions", "records", "bytes"), as_json)


def create_topic(
    target: Target,
    name: Name,
    partitions: Partitions = None,
    settings: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="No error if it is there; it stays as it is.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    from penstock.cli.http import ApiError, segment

    body: dict[str, Any] = {"name": name, "settings": parse_settings(settings or [])}
    if partitions is not None:
        body["partitions"] = partitions
    api = target.api()
    try:
        created = api.call("POST", "/topics", body)
    except ApiError as error:
        if not if_not_exists or error.name != TOPIC_EXISTS:
            raise
        created = api.get(f"/topics/{segment(name)}")
    if as_json:
        print_json(created)
    typer.echo(f"topic {name} has {created['partitions']} partition(s)", err=True)


def describe_topic(target: Target, name: Name, as_json: AsJson = False) -> None:
    """Show a topic's settings and partitions."""
    topic = find_topic(target.api(), name)
    if as_json:
        print_json(topic)
        return
    fields = {"name": topic["name"], "partitions": topic["partitions"]}
    fields |= {"records": topic["records"], "bytes": topic["bytes"], **topic["settings"]}
    if topic["keys_needed"]:
        fields["keys_needed"] = topic["keys_needed"]
    width = max(map(len, fields))
    for field, value in fields.items():
        typer.echo(f"{field.ljust(width)}  {_shown(value)}")
    typer.echo("")
    columns = ("partition", "earliest", "latest", "bytes", "segments", "stopped")
    print_table(topic["partition_details"], columns, False)
    for partition in topic["partition_details"]:
        for damage in partition["damages"]:
            typer.echo(f"partition {partition['partition']}: {_shown(damage)}", err=True)


def delete_topic(
    target: Target,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names, or patterns such as 'orders.*'.")
    ],
    yes: Yes = False,
) -> None:
    """Delete topics and all their records."""
    from penstock.cli.records import matching_names

    api = target.api()
    kept = False
    for name in matching_names(api, names):
        if not _confirmed(api, name, f"Delete {name}", yes):
            kept = True
            continue
        call_topic(api, "DELETE", name)
        typer.echo(f"topic {name} is deleted", err=True)
    if kept:
        raise typer.Exit(ExitCode.FAILED)


def purge_topic(target: Target, name: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove all records of a topic; the topic, its settings and its groups stay."""
    api = target.api()
    if not _confirmed(api, name, f"Purge {name}", yes):
        raise typer.Exit(ExitCode.FAILED)
    purged = call_topic(api, "POST", name, "/purge")
    if as_json:
        print_json(purged)
    typer.echo(f"topic {name} is purged, {purged['freed_bytes']} bytes are free again", err=True)


def _confirmed(api: "Api", name: str, what: str, yes: bool) -> bool:
    """Asks, unless told not to. Who may not look at the topic is asked without the number."""
    from penstock.cli.http import ApiNotAuthorized

    if yes:
        return True
    try:
        records = f"{find_topic(api, name)['records']} records"
    except ApiNotAuthorized:
        records = "all its records"
    if typer.confirm(f"{what} with {records} for good?", err=True):
        return True
    # An answer from a pipe leaves the cursor behind the question.
    start = "" if sys.stdin.isatty() else "\n"
    typer.echo(f"{start}topic {name} is kept", err=True)
    return False


def set_topic(
    target: Target,
    name: Name,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings to change.")
    ] = None,
    partitions: Partitions = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic, or give it more partitions."""
    body: dict[str, Any] = {"settings": parse_settings(settings or [])}
    if partitions is not None:
        body["partitions"] = partitions
    if not settings and partitions is None:
        raise typer.BadParameter("nothing to change, give NAME=VALUE or --partitions")
    changed = call_topic(target.api(), "PATCH", name, body=body)
    if as_json:
        print_json(changed)
    typer.echo(f"topic {name} is changed", err=True)


def find_topic(api: "Api", name: str) -> Any:
    """The topic; if there is none, an error that names the nearest there is."""
    return call_topic(api, "GET", name)


def call_topic(api: "Api", method: str, name: str, suffix: str = "", body: Any = None) -> Any:
    """The answer of a call on a topic, with the same error where there is none."""
    from penstock.cli.http import ApiNotFound, segment

    try:
        return api.call(method, f"/topics/{segment(name)}{suffix}", body)
    except ApiNotFound as error:
        names = [topic["name"] for topic in api.list("topics")]
        text = f"no topic named {name!r}; {suggestion(name, names)}"
        raise ApiNotFound(error.url, error.status, error.name, text) from None


def suggestion(name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]}?" if near else "penstock topic ls shows all"


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE; the value is a number, a size or time with its unit ("64 MiB", "7 d"), or a word."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r}: write NAME=VALUE")
        try:
            settings[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            settings[name] = _with_unit(name, value)
    return settings


def _with_unit(name: str, value: str) -> int | str:
    """The number in the unit of the setting, which is the end of its name."""
    from penstock.server.config.units import UnitError, is_off, parse_bytes, parse_time_us

    try:
        if name.endswith("_ms"):
            return 0 if is_off(value) else parse_time_us(value) // 1000
        if name.endswith("_bytes"):
            return 0 if is_off(value) else parse_bytes(value)
    except UnitError as error:
        raise typer.BadParameter(f"{name}={value}: {error}") from None
    return value


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
