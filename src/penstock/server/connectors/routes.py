"""All routes of a configuration that lead to brokers outside: made at the start, closed at the stop.

A library is imported with the first route that needs it. Nothing is connected before a client uses a route.
"""

import asyncio
import importlib
from collections.abc import Mapping
from functools import partial

from penstock.errors import PenstockError
from penstock.server.connectors.connector import Connector
from penstock.server.connectors.route import Route
from penstock.server.connectors.settings import Outside


class ExtraMissing(PenstockError):
    """The library of a route is not installed."""

    route: str
    kind: str
    module: str

    line = (
        "fujin.routes.{route}.{kind} needs the module {module}, which is not installed:"
        " pip install 'penstock[{kind}]'"
    )


class BadRoute(PenstockError):
    route: str
    kind: str
    reason: str

    line = "fujin.routes.{route}.{kind}: {reason}"


class Routes:
    """By their names. On the event loop."""

    def __init__(self) -> None:
        self.by_name: dict[str, Route] = {}

    def add_all(self, wanted: Mapping[str, Outside], environment: Mapping[str, str]) -> None:
        """Raises ExtraMissing, or BadRoute for a password that is not where it should be."""
        for name, settings in wanted.items():
            connector = _connector(name, settings.kind)
            try:
                settings.password(environment)
            except ValueError as error:
                raise BadRoute(name, settings.kind, str(error)) from None
            make = partial(connector, settings, environment)
            self.by_name[name] = Route(name, settings, connector, make)

    async def close(self) -> None:
        routes = list(self.by_name.values())
        await asyncio.gather(*(route.close() for route in routes))


def _connector(name: str, kind: str) -> type[Connector]:
    try:
        module = importlib.import_module(f"penstock.server.connectors.{kind}")
    except ModuleNotFoundError as error:
        missing = error.name or kind
        if missing.startswith("penstock"):
            raise
        raise ExtraMissing(name, kind, missing) from None
    connector: type[Connector] = module.CONNECTOR
    return connector
