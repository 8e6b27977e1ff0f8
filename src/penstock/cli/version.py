"""`penstock version`: which version this is, on which Python, compiled or pure."""

from typing import Annotated

import msgspec
import typer

from penstock import build_info
from penstock._build import hot_modules


def register(app: typer.Typer) -> None:
    app.command("version")(show_version)


def show_version(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell the version, the Python, and whether the hot modules run compiled or pure."""
    info = build_info()
    if as_json:
        typer.echo(msgspec.json.encode({"kind": info.kind, **msgspec.to_builtins(info)}).decode())
        return
    typer.echo(f"penstock {info.version}, Python {info.python}, {info.kind}")
    for module in hot_modules():
        typer.echo(f"  {module}: {'compiled' if module in info.compiled else 'pure'}")
