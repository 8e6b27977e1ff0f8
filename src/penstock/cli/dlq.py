"""`penstock dlq ls|replay|purge`: the dead letters of a topic, over the HTTP API."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import add_listing, preview, print_table
from penstock.cli.target import Target, with_target

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.cli.http import Api

Topic = Annotated[str, typer.Argument(help="Name of the topic, without .dlq.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
COLUMNS = ("id", "reason", "deliveries", "replays", "value")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Dead letters: list, replay, purge.", no_args_is_help=True)
    add_listing(group, with_target(list_letters))
    group.command("replay")(with_target(replay_letters))
    group.command("purge")(with_target(purge_letters))
    app.add_typer(group, name="dlq")


def list_letters(target: Target, topic: Topic, as_json: AsJson = False) -> None:
    """Show the messages that were given up."""
    letters = list(_letters(target.api(), topic))
    if not as_json:
        letters = [{**one, "value": preview(one["value"])} for one in letters]
    print_table(letters, COLUMNS, as_json)


def replay_letters(
    target: Target,
    topic: Topic,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids as dlq ls shows them.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that were not replayed before.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also those that were replayed before.")
    ] = False,
) -> None:
    """Publish dead letters to their topic again. They stay in the list, marked."""
    from penstock.cli.http import segment

    if bool(ids) == everything:
        raise typer.BadParameter("give ids, or --all")
    api = target.api()
    wanted = ids or [one["id"] for one in _letters(api, topic) if force or not one["replays"]]
    for done, letter_id in enumerate(wanted):
        try:
            body = {"id": letter_id, "force": force}
            api.call("POST", f"/topics/{segment(topic)}/dead-letters/replay", body)
        except Exception as error:
            if done:
                error.add_note(f"{done} replayed before it")
            raise
    typer.echo(f"{len(wanted)} replayed to {topic}", err=True)


def purge_letters(
    target: Target,
    topic: Topic,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Remove all dead letters of a topic."""
    from penstock.cli.http import segment

    if not yes:
        typer.confirm(f"remove all dead letters of {topic}?", abort=True, err=True)
    target.api().call("DELETE", f"/topics/{segment(topic)}/dead-letters")
    typer.echo(f"the dead letters of {topic} are removed", err=True)


def _letters(api: "Api", topic: str) -> Iterator[Any]:
    """All of them: the server gives a list in parts."""
    from penstock.cli.http import segment

    after = None
    while True:
        page = api.get(f"/topics/{segment(topic)}/dead-letters", limit=1_000, after=after)
        yield from page["dead_letters"]
        after = page.get("next")
        if after is None:
            return
