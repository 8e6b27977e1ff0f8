"""`penstock status`: which engine keeps the log, and who serves it, over the HTTP API."""

from typing import Annotated

import typer

from penstock.cli.output import print_json, print_table
from penstock.cli.target import Target, with_target

COLUMNS = ("node", "kind", "address", "status", "asked")


def register(app: typer.Typer) -> None:
    app.command("status")(with_target(status))


def status(
    target: Target,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the engine, the gateways and brokers behind it, and what is wrong with it. Exits with 1 while
    the engine is in trouble."""
    found = target.api().get("/cluster")
    if as_json:
        print_json(found)
    else:
        typer.echo(
            f"engine {found['engine']}, cluster {found['cluster']}, Penstock {found['version']}"
        )
        rows = [
            {
                "node": node["id"],
                "kind": "broker" if node["cluster_address"] else "gateway",
                "address": node["cluster_address"] or node["address"],
                "status": node["status"],
                "asked": node["leader"],
            }
            for node in found["nodes"]
        ]
        print_table(rows, COLUMNS, as_json=False)
        if found["trouble"]:
            typer.echo(f"trouble: {found['trouble']}")
    if found["trouble"]:
        raise typer.Exit(1)
