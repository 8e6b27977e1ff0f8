"""`penstock delayed ls|count|cancel`: messages that come later, over the HTTP API.

`penstock pub --delay` makes them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import add_listing, preview, print_json, print_table
from penstock.cli.target import Target, with_target

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.cli.http import Api

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str | None, typer.Option("-t", "--topic", help="Only of this topic.")]
COLUMNS: Final = ("id", "topic", "due", "value")
PAGE: Final = 1_000
DEFAULT_SHOWN: Final = 1_000


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Delayed messages: list, count, cancel.", no_args_is_help=True)
    add_listing(group, with_target(list_messages))
    group.command("count")(with_target(count_messages))
    group.command("cancel")(with_target(cancel_messages))
    app.add_typer(group, name="delayed")


def list_messages(
    target: Target,
    topic: Topic = None,
    count: Annotated[
        int, typer.Option("-n", "--count", min=1, help="At most so many.")
    ] = DEFAULT_SHOWN,
    as_json: AsJson = False,
) -> None:
    """Show messages that are pending, hour by hour, of topics that you may read."""
    from penstock.cli.output import moment

    rows: list[Any] = []
    for row in _messages(target.api(), topic):
        if len(rows) == count:
            typer.echo(f"there are more; -n {10 * count} shows more of them", err=True)
            break
        rows.append(row)
    if not as_json:
        for row in rows:
            row["due"] = moment(row["due_us"])
            row["value"] = preview(row["value"])
    print_table(rows, COLUMNS, as_json)


def count_messages(target: Target, as_json: AsJson = False) -> None:
    """Print how many messages are pending on the whole server."""
    found = target.api().get("/delayed", limit=0)["pending"]
    if as_json:
        print_json({"pending": found})
    else:
        typer.echo(found)


def cancel_messages(
    target: Target,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As delayed ls shows them.")],
) -> None:
    """Cancel messages that are not delivered yet."""
    from penstock.cli.http import ApiNotFound, segment

    api = target.api()
    for done, one in enumerate(ids):
        try:
            api.call("DELETE", f"/delayed/{segment(one)}")
        except ApiNotFound as error:
            text = f"no delayed message {one!r}: it was delivered or cancelled, or never there"
            if done:
                text += f"; {done} cancelled before it"
            raise ApiNotFound(error.url, error.status, error.name, text) from None
        except Exception as error:
            if done:
                error.add_note(f"{done} cancelled before it")
            raise
    typer.echo(f"{len(ids)} cancelled", err=True)


def _messages(api: "Api", topic: str | None) -> Iterator[Any]:
    """All of them: the server gives a list in parts."""
    after = None
    while True:
        page = api.get("/delayed", limit=PAGE, after=after, topic=topic)
        yield from page["messages"]
        after = page.get("next")
        if after is None:
            return
