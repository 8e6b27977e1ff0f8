"""`penstock txn ls|show|abort`: open transactions, over the HTTP API. Programs begin and commit them.

Everybody sees their own, and administrators of the server see all and may roll them back.
"""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import add_listing, print_json, print_table
from penstock.cli.target import Target, with_target

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.cli.http import Api

Id = Annotated[str, typer.Argument(metavar="ID", help="As txn ls shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
COLUMNS: Final = ("id", "owner", "state", "since", "staged_bytes", "topics")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Open transactions: list, show, roll back.", no_args_is_help=True)
    add_listing(group, with_target(list_transactions))
    group.command("show")(with_target(show_transaction))
    group.command("abort")(with_target(abort_transaction))
    app.add_typer(group, name="txn")


def list_transactions(target: Target, as_json: AsJson = False) -> None:
    """Show open transactions: your own, or as an administrator those of all."""
    _print(list(target.api().list("transactions")), as_json)


def show_transaction(target: Target, transaction: Id, as_json: AsJson = False) -> None:
    """Show one open transaction."""
    found = _call(target.api(), "GET", transaction)
    if as_json:
        print_json(found)
    else:
        _print([found], False)


def abort_transaction(target: Target, transaction: Id) -> None:
    """Roll a transaction back: nothing of it will be seen."""
    from penstock.cli.http import ApiNotAuthorized, ApiNotFound

    api = target.api()
    try:
        _call(api, "DELETE", transaction)
    except ApiNotFound as missing:
        try:
            _call(api, "POST", transaction, "/abort")  # that of somebody else
        except ApiNotAuthorized:
            raise missing from None
    typer.echo(f"transaction {transaction} is rolled back", err=True)


def _print(rows: list[Any], as_json: bool) -> None:
    from penstock.cli.output import moment

    if not as_json:
        for row in rows:
            row["since"] = moment(row["begun_us"])
            topics = [f"{name} ({count})" for name, count in sorted(row["topics"].items())]
            row["topics"] = ", ".join(topics) or "-"
    print_table(rows, COLUMNS, as_json)


def _call(api: "Api", method: str, transaction: str, suffix: str = "") -> Any:
    """The answer of a call on one; if there is none, an error that names the nearest there is."""
    from penstock.cli.http import ApiNotFound, segment

    try:
        return api.call(method, f"/transactions/{segment(transaction)}{suffix}")
    except ApiNotFound as error:
        near = get_close_matches(transaction, [one["id"] for one in api.list("transactions")], 1)
        hint = f"did you mean {near[0]}?" if near else "penstock txn ls shows those that are open"
        text = f"no open transaction {transaction!r}; {hint}"
        raise ApiNotFound(error.url, error.status, error.name, text) from None
