"""`penstock serve`: the broker, in the foreground, until a signal."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.environment import CONFIG_VARIABLE
from penstock.cli.options import with_options
from penstock.errors import PenstockError
from penstock.server.protocols import PROTOCOLS, quic_rows

if TYPE_CHECKING:  # at run time only the command imports it: `penstock --help` stays quick
    import asyncio

    from penstock.server.config.loading import LoadedConfig

CONFIG_HELP = "TOML file; see penstock config init."
ENGINE_HELP = "embedded, or kafka: the log is Kafka's, see --set kafka.bootstrap=host:port."
UDP_HELP = "host:port of all QUIC protocols, or off."
PIPELINE_HELP = "Run the pipeline of this project beside the broker; made if it is not there."
SET_HELP = "Any setting, as section.key=value; may be given again."


class NotLinux(PenstockError):
    """Another system than the one that the server is made for."""

    system: str

    line = "the server runs on Linux, and this is {system}; clients run here too"


def register(app: typer.Typer) -> None:
    listeners = {
        name: (Annotated[str | None, typer.Option(f"--{name}", help=_alone(row.title))], None)
        for row in PROTOCOLS
        for name in row.listeners
    }
    if quic_rows():
        listeners["udp"] = (Annotated[str | None, typer.Option("--udp", help=UDP_HELP)], None)
    app.command("serve")(with_options(serve, "alone", listeners, dict, before="flight"))


def _alone(protocol: str) -> str:
    return f"host:port of {protocol} alone, or off."


def serve(
    alone: dict[str, str | None],  # the listeners that a protocol has for itself, by name
    config: Annotated[
        str | None, typer.Option("--config", "-c", envvar=CONFIG_VARIABLE, help=CONFIG_HELP)
    ] = None,
    data: Annotated[str | None, typer.Option(help="Where the log lives.")] = None,
    engine: Annotated[str | None, typer.Option(help=ENGINE_HELP)] = None,
    tcp: Annotated[str | None, typer.Option(help="host:port of all TCP protocols, or off.")] = None,
    flight: Annotated[str | None, typer.Option(help="host:port of Arrow Flight, or off.")] = None,
    http: Annotated[str | None, typer.Option(help="host:port of HTTP, or off.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let others in without keys and TLS.")
    ] = False,
    pipeline: Annotated[
        Path | None, typer.Option("--pipeline", metavar="DIR", help=PIPELINE_HELP)
    ] = None,
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="The broker alone, whatever --pipeline says.")
    ] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
) -> None:
    """Start the broker here. SIGTERM or Ctrl-C stops it: open work finishes, the log is flushed. SIGHUP
    reads configuration and certificates again."""
    from penstock.cli.config import load

    named = {
        "server.data_directory": data,
        "server.engine": engine,
        "listeners.tcp": tcp,
        **{f"listeners.{name}": address for name, address in alone.items()},
        "listeners.flight": flight,
        "listeners.http": http,
        "server.log_level": log_level,
        "server.insecure": "true" if insecure else None,
    }
    if sys.platform != "linux":
        raise NotLinux(sys.platform)

    import asyncio

    def load_config() -> "LoadedConfig":
        return load(config, named, settings or [])

    loaded = load_config()

    from penstock.server import logs
    from penstock.server.server import Server

    logs.configure(loaded.config.server.log_level, loaded.config.server.log_format)
    child = None
    if pipeline is not None and not no_pipeline:
        from penstock.cli.pipeline_child import pipeline_child

        child = pipeline_child(pipeline)
    server = Server(
        loaded, environment=os.environ, say=_say, load_again=load_config, pipeline=child
    )
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
