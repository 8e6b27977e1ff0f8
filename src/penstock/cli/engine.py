"""`penstock engine copy`: moves a log between the engines, while no server runs on it."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import PenstockError

if TYPE_CHECKING:  # at run time only the command imports these: `penstock --help` stays quick
    from penstock.server.config.loading import LoadedConfig
    from penstock.server.engine_copy import Copied

ENGINES = ("embedded", "kafka")


class NoSuchEngine(PenstockError):
    exit_code = 2

    engine: str

    line = "--to {engine}: expected embedded or kafka"


class NoKafka(PenstockError):
    exit_code = 2

    line = "kafka.bootstrap does not say where Kafka is; give --set kafka.bootstrap=host:port"


def register(app: typer.Typer) -> None:
    engine = typer.Typer(help="The engine that keeps the log.", no_args_is_help=True)
    engine.command("copy")(copy_engine)
    app.add_typer(engine, name="engine")


def copy_engine(
    to: Annotated[str, typer.Option("--to", metavar="ENGINE", help="kafka, or embedded.")],
    config: Annotated[
        str | None, typer.Option("--config", "-c", help="Configuration of the server.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR", help="Data directory of the embedded one."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Only this topic and its groups; may be given again."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, such as kafka.bootstrap=host:port."),
    ] = None,
) -> None:
    """Copy topics, groups, users, rules and schemas to the other engine, and compare them.

    No server may run on either side. Offsets begin anew in a new topic, and groups keep their places. What
    transactions hold that are not committed, and the claims of subscribers, stay behind.
    """
    import asyncio

    from penstock.cli.config import load

    if to not in ENGINES:
        raise NoSuchEngine(to)
    loaded = load(config, {"server.data_directory": data}, settings or [])
    if not loaded.config.kafka.bootstrap.strip():
        raise NoKafka
    done = asyncio.run(_copy(loaded, to, topic or []))
    typer.echo(
        f"copied to {to}: {done.topics} topic(s), {done.records:,} record(s), {done.groups} group(s), "
        f"{done.metadata} record(s) of users, rules and schemas"
    )


async def _copy(loaded: "LoadedConfig", to: str, topics: list[str]) -> "Copied":
    import asyncio
    import os

    import msgspec

    from penstock.log.engine import Engine
    from penstock.server.assembly import open_engine
    from penstock.server.config.encryption import read_keys
    from penstock.server.engine_copy import EngineCopy
    from penstock.server.net.outbox import Outbox

    loop = asyncio.get_running_loop()
    keys = read_keys(loaded.config.encryption, os.environ)
    opened: dict[str, Engine] = {}
    try:
        for name in ENGINES:
            server = msgspec.structs.replace(loaded.config.server, engine=name)
            config = msgspec.structs.replace(loaded.config, server=server)
            opened[name] = await asyncio.to_thread(
                open_engine, config, loop, Outbox(loop), lambda *_: None, keys
            )
        source = next(engine for name, engine in opened.items() if name != to)
        return await EngineCopy(source, opened[to], typer.echo, topics).run()
    finally:
        for engine in opened.values():
            await asyncio.to_thread(engine.close)
