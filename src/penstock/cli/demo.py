"""`penstock demo`: the whole way on this machine, from five protocols to clean tables."""

from pathlib import Path
from typing import Annotated, Final

import typer

# Tables, and how many rows of each: the last ones.
SHOWN: Final = {
    "orders_silver": ("order_id", "customer", "product", "amount", "ordered_at"),
    "orders_dead_letters": ("reason", "partition", "offset", "value"),
    "telemetry_silver": ("device", "reading", "temperature", "measured_at"),
    "revenue": ("began", "orders", "revenue"),
    "products": ("product", "views", "orders", "revenue"),
}
SHOWN_ROWS: Final = 5


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    directory: Annotated[
        Path, typer.Option(help="Where it works; what an earlier demo left there is removed.")
    ] = Path("penstock-demo"),
    seed: Annotated[int, typer.Option(help="Another number is another load.")] = 1,
) -> None:
    """Start a broker and a pipeline, send a load over all five protocols, and show the tables."""
    import asyncio
    from datetime import UTC, datetime
    from random import Random

    from penstock.cli.pipeline_child import pipeline_child
    from penstock.demo.events import DEMO_AMOUNTS, make_load
    from penstock.demo.running import Demo, prepared
    from penstock.server import logs
    from penstock.spark.jvm.java import require_java
    from penstock.spark.pipeline.session import require_pipelines

    require_pipelines()
    require_java()
    logs.configure("warning", "text")
    with prepared(directory) as layout:
        child = pipeline_child(layout.pipeline)
        assert child is not None  # both were asked for above
        events = make_load(Random(seed), datetime.now(UTC), DEMO_AMOUNTS)
        asyncio.run(Demo(layout, child, events, _say).run())
        _show(layout.pipeline)
        _where_to_look(directory)


def _show(project: Path) -> None:
    from penstock.cli import pipeline
    from penstock.cli.table import table

    pipeline.show(project)
    for name, columns in SHOWN.items():
        typer.echo(f"\n{name}")
        table(name, SHOWN_ROWS, project, list(columns))


def _where_to_look(directory: Path) -> None:
    from penstock.server.banner import command_here

    penstock = command_here()
    project = directory / "pipeline"
    _say(f"""
Where to look:
  {penstock} pipeline show {project}
  {penstock} table clicks_silver --project {project}
  {penstock} table orders_dead_letters --project {project} --column reason --column value
Broker and pipeline are stopped. This starts them on the same data, until Ctrl-C:
  {penstock} serve --data {directory / "data"} --pipeline {project}
and then, in another terminal:
  {penstock} sub shop/floor/alerts --protocol rustlog --from earliest
  {penstock} dlq ls orders""")


def _say(text: str) -> None:
    typer.echo(text, err=True)
