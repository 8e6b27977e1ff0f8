"""`penstock acl set|get|delete|ls`: the rules of topics, over the HTTP API."""

from typing import Annotated, Any, Final

import typer

from penstock.cli.output import add_listing, print_table
from penstock.cli.target import Target, with_target

RULES_PATH: Final = "/acls"
COLUMNS: Final = ("topic", "public", "users", "roles")

Topic = Annotated[str, typer.Argument(help="Name of the topic, or a pattern such as 'news.*'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Who may use topics beside their roles.", no_args_is_help=True)
    group.command("set")(with_target(set_rule))
    group.command("get")(with_target(get_rule))
    group.command("delete")(with_target(delete_rule))
    add_listing(group, with_target(list_rules))
    app.add_typer(group, name="acl")


def set_rule(
    target: Target,
    topic: Topic,
    public: Annotated[
        bool, typer.Option("--public", help="Everybody who has logged in may read and write.")
    ] = False,
    users: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A user or key that may; repeat for more."),
    ] = None,
    roles: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="A role that may; repeat for more.")
    ] = None,
) -> None:
    """Replace the rule of a topic. Takes effect at once; it adds rights and takes none away."""
    body = {"public": public, "users": users or [], "roles": roles or []}
    target.api().call("PUT", _path(topic), body)
    typer.echo(f"the rule of {topic} is set", err=True)


def get_rule(target: Target, topic: Topic, as_json: AsJson = False) -> None:
    """Show the rule of a topic."""
    _show([target.api().call("GET", _path(topic))], as_json)


def delete_rule(target: Target, topic: Topic) -> None:
    """Forget the rule of a topic. Takes effect at once."""
    target.api().call("DELETE", _path(topic))
    typer.echo(f"the rule of {topic} is deleted", err=True)


def list_rules(target: Target, as_json: AsJson = False) -> None:
    """Show the rules of all topics."""
    _show(list(target.api().list("acls")), as_json)


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if not as_json:
        for row in rows:
            row["public"] = "yes" if row["public"] else "no"
            row["users"] = " ".join(row["users"]) or "-"
            row["roles"] = " ".join(row["roles"]) or "-"
    print_table(rows, COLUMNS, as_json)


def _path(topic: str) -> str:
    from penstock.cli.http import segment

    return f"{RULES_PATH}/{segment(topic)}"
