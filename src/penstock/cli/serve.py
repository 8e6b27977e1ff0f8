"""`penstock serve`: the broker, in the foreground, until a signal."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.environment import CONFIG_VARIABLE

if TYPE_CHECKING:  # at run time only the command imports it: `penstock --help` stays quick
    import asyncio

CONFIG_HELP = "TOML file; see penstock config init."
SET_HELP = "Any setting, as section.key=value; may be given again."


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    config: Annotated[
        str | None, typer.Option("--config", "-c", envvar=CONFIG_VARIABLE, help=CONFIG_HELP)
    ] = None,
    data: Annotated[str | None, typer.Option(help="Where the log lives.")] = None,
    tcp: Annotated[str | None, typer.Option(help="host:port of all TCP protocols, or off.")] = None,
    blipmq: Annotated[str | None, typer.Option(help="host:port of BlipMQ alone, or off.")] = None,
    rustlog: Annotated[str | None, typer.Option(help="host:port of RustLog alone, or off.")] = None,
    flight: Annotated[str | None, typer.Option(help="host:port of Arrow Flight, or off.")] = None,
    http: Annotated[str | None, typer.Option(help="host:port of HTTP, or off.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let others in without keys and TLS.")
    ] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
) -> None:
    """Start the broker here. SIGTERM or Ctrl-C stops it: open work finishes, the log is flushed."""
    from penstock.cli.config import load

    named = {
        "server.data_directory": data,
        "listeners.tcp": tcp,
        "listeners.blipmq": blipmq,
        "listeners.rustlog": rustlog,
        "listeners.flight": flight,
        "listeners.http": http,
        "server.log_level": log_level,
        "server.insecure": "true" if insecure else None,
    }
    loaded = load(config, named, settings or [])

    import asyncio
    import logging

    from penstock.server.server import Server

    logging.basicConfig(
        level=loaded.config.server.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    server = Server(loaded, environment=os.environ, say=_say)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(server.run())


def _say(text: str) -> None:
    typer.echo(text, nl=False)


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """uvloop where it can be had; it is not made for every system."""
    try:
        from uvloop import Loop
    except ImportError:
        return None
    return Loop
