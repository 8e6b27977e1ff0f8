"""`penstock context add|ls|use|rm`: named servers. The file they are in: `contexts`."""

from typing import Annotated

import typer

from penstock.cli.contexts import Context, Contexts, check_name, default_path, load, save
from penstock.cli.output import add_listing, print_table

Name = Annotated[str, typer.Argument(help="Name of the context.")]
Text = str | None


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Named servers with their API keys.", no_args_is_help=True)
    group.command("add")(add_context)
    add_listing(group, list_contexts)
    group.command("use")(use_context)
    group.command("rm")(remove_context)
    app.add_typer(group, name="context")


def add_context(
    name: Name,
    server: Annotated[Text, typer.Option(metavar="HOST:PORT", help="Wire protocols.")] = None,
    http: Annotated[Text, typer.Option(metavar="URL", help="HTTP API.")] = None,
    key: Annotated[
        Text, typer.Option(metavar="KEY", help="API key; - reads it from stdin.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Wire protocols over TLS.")] = False,
    ca: Annotated[Text, typer.Option(metavar="FILE", help="Certificates to trust.")] = None,
    cert: Annotated[Text, typer.Option(metavar="FILE", help="Own certificate to show.")] = None,
    cert_key: Annotated[
        Text, typer.Option(metavar="FILE", help="Its private key, if not in the same file.")
    ] = None,
) -> None:
    """Add a context, or replace it. The first one is used from then on."""
    contexts, current = load()
    if key == "-":
        key = typer.get_text_stream("stdin").readline().strip()
    if cert_key is not None and cert is None:
        raise typer.BadParameter("--cert-key needs --cert, the certificate that it belongs to")
    try:
        check_name(name)
        added = Context(server, http, key, tls or None, ca, cert, cert_key)
        changed = {**contexts.by_name, name: added}
        path = save(Contexts(changed), current or name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(f"context {name} is in {path}", err=True)


def list_contexts(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON. Keys are not shown.")
    ] = False,
) -> None:
    """Show all contexts; never their keys."""
    contexts, current = load()
    rows = [
        {
            "name": name,
            "current": name == current,
            "server": one.server,
            "http": one.http,
            "key": "set" if one.key else None,
            "tls": bool(one.tls),
        }
        for name, one in sorted(contexts.by_name.items())
    ]
    print_table(rows, ("current", "name", "server", "http", "key", "tls"), as_json)


def use_context(name: Name) -> None:
    """Use this context from now on."""
    contexts, _ = load()
    contexts.find(name)
    save(contexts, name)


def remove_context(name: Name) -> None:
    """Forget a context and its key."""
    contexts, current = load()
    contexts.find(name)
    left = {other: one for other, one in contexts.by_name.items() if other != name}
    save(Contexts(left), None if current == name else current)
    typer.echo(f"context {name} is gone from {default_path()}", err=True)
