"""`penstock user create|ls|update|enable|disable|passwd|delete`: users with passwords and roles.

They ask the HTTP API of a server. `create` and `passwd` with --data work on a data directory that no server
uses: that way a server gets its first administrator before it ever starts. Passwords come from the terminal
or from stdin, never from an argument, which others on the machine can see.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from penstock.cli.key import Data, opened, read_secret
from penstock.cli.output import add_listing, print_table
from penstock.cli.target import Target, with_target
from penstock.errors import ExitCode, PenstockError

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from collections.abc import Callable

    from penstock.broker.access.access import Principal
    from penstock.broker.access.accounts import Accounts

USERS_PATH: Final = "/users"
COLUMNS: Final = ("name", "roles", "enabled", "since")

Name = Annotated[str, typer.Argument(help="Name of the user.")]
Roles = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE", help="admin, writer, reader or guest; repeat for more."),
]


class BadPassword(PenstockError):
    limit: int

    line = "give a password of 1 to {limit} bytes of UTF-8 on stdin"


class NoSuchUser(PenstockError):
    exit_code: ClassVar[int] = ExitCode.NOT_FOUND

    text: str

    line = "{text}"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Users: passwords, roles, enable, disable.", no_args_is_help=True)
    group.command("create")(with_target(create_user))
    add_listing(group, with_target(list_users))
    group.command("update")(with_target(update_user))
    group.command("enable")(with_target(enable_user))
    group.command("disable")(with_target(disable_user))
    group.command("passwd")(with_target(change_password))
    group.command("delete")(with_target(delete_user))
    app.add_typer(group, name="user")


def create_user(
    target: Target,
    name: Name,
    roles: Roles = None,
    admin: Annotated[bool, typer.Option("--admin", help="The same as --roles admin.")] = False,
    data: Data = None,
) -> None:
    """Make a user; the password comes from the terminal or from stdin."""
    wanted = [*(roles or []), *(["admin"] if admin else [])]
    password = _password("Password")
    if data is not None:
        _offline(data, lambda accounts, by: accounts.create_user(by, name, password, wanted))
    else:
        target.api().call("POST", USERS_PATH, {"name": name, "password": password, "roles": wanted})
    typer.echo(f"user {name!r} ({', '.join(wanted) or 'no role'})", err=True)


def list_users(
    target: Target,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show names, roles and state of all users."""
    from penstock.cli.key import day

    rows = list(target.api().list("users"))
    if not as_json:
        for row in rows:
            row["roles"] = " ".join(row["roles"]) or "-"
            row["enabled"] = "yes" if row["enabled"] else "no"
            row["since"] = day(row["created_us"])
    print_table(rows, COLUMNS, as_json)


def update_user(target: Target, name: Name, roles: Roles = None) -> None:
    """Replace the roles of a user; without --roles it has none. Takes effect at once."""
    _change(target, name, {"roles": roles or []})
    typer.echo(f"user {name!r} ({', '.join(roles or []) or 'no role'})", err=True)


def enable_user(target: Target, name: Name) -> None:
    """Let a user log in again."""
    _change(target, name, {"enabled": True})
    typer.echo(f"user {name!r} is enabled", err=True)


def disable_user(target: Target, name: Name) -> None:
    """Let a user do nothing any more, at once, also on connections that are open."""
    _change(target, name, {"enabled": False})
    typer.echo(f"user {name!r} is disabled", err=True)


def change_password(target: Target, name: Name, data: Data = None) -> None:
    """Change the password of a user, from the terminal or from stdin. Ends the user's sessions."""
    password = _password("New password")
    if data is not None:
        _offline(data, lambda accounts, by: accounts.set_password(by, name, password))
    else:
        body = {"password": password}
        if target.user == name:
            body["current"] = target.key
        target.api().call("POST", f"{_path(name)}/password", body)
    typer.echo(f"user {name!r} has a new password", err=True)


def delete_user(target: Target, name: Name) -> None:
    """Forget a user, at once, also on connections that are open."""
    target.api().call("DELETE", _path(name))
    typer.echo(f"user {name!r} is deleted", err=True)


def _change(target: Target, name: str, body: dict[str, Any]) -> None:
    target.api().call("PATCH", _path(name), body)


def _path(name: str) -> str:
    from penstock.cli.http import segment

    return f"{USERS_PATH}/{segment(name)}"


def _password(what: str) -> str:
    from penstock.broker.access.keys import MAX_SLOW_KEY_BYTES

    found = read_secret(what, MAX_SLOW_KEY_BYTES, twice=True)
    if found is None:
        raise BadPassword(MAX_SLOW_KEY_BYTES)
    return found


def _offline(data: str, change: "Callable[[Accounts, Principal], object]") -> None:
    from penstock.broker.errors import BrokerError, Code

    with opened(data, create=True) as offline:
        try:
            change(offline.accounts, offline.by)
        except BrokerError as error:
            if error.code is Code.UNKNOWN_USER:
                raise NoSuchUser(str(error)) from None
            raise
