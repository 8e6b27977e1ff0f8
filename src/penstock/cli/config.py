"""`penstock config`: what takes effect and from where, and a commented file to begin with."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.environment import CONFIG_VARIABLE
from penstock.errors import ExitCode, PenstockError

if TYPE_CHECKING:
    from penstock.server.config.loading import LoadedConfig


class BadSetting(PenstockError):
    """A --set that is not section.key=value."""

    exit_code = ExitCode.USAGE

    text: str

    line = "--set {text}: expected section.key=value, such as limits.connections=500"


class FileExists(PenstockError):
    path: str

    line = "{path} exists already; remove it first or write to another path"


def register(app: typer.Typer) -> None:
    commands = typer.Typer(help="Show the configuration that takes effect, or write a file.")
    commands.command("show")(show)
    commands.command("init")(init)
    app.add_typer(commands, name="config")


def show(
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", envvar=CONFIG_VARIABLE, help="The TOML file to read."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, as section.key=value.")
    ] = None,
) -> None:
    """Print every setting as it takes effect, and where it came from. Secrets are hidden."""
    from penstock.server.config.text import render_show

    typer.echo(render_show(load(config, {}, settings or [])), nl=False)


def init(
    path: Annotated[str, typer.Argument(help="Where to write; - for standard output.")] = (
        "penstock.toml"
    ),
) -> None:
    """Write a file with every setting, its default and its meaning, all as comments."""
    from penstock.server.config.text import render_init

    if path == "-":
        typer.echo(render_init(), nl=False)
        return
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(render_init())
    except FileExistsError:
        raise FileExists(path) from None
    typer.echo(f"{path} written; use it with penstock serve --config {path}")


def load(
    path: str | None, named: Mapping[str, str | None], settings: Sequence[str]
) -> "LoadedConfig":
    """Defaults, file, environment, then flags; the named ones win over --set."""
    from penstock.server.config.loading import load_config

    flags: dict[str, str] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadSetting(text)
        flags[key.strip()] = value
    flags.update({key: value for key, value in named.items() if value is not None})
    return load_config(path, os.environ, flags)
