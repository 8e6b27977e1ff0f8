"""How a project reaches the broker: by the settings spark.penstock.* of its session or, for commands that
ask without starting Spark, of its file."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.spark.connection import Connection, resolve
from penstock.spark.options import read_options
from penstock.spark.pipeline.project import PREFIX, Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_SERVER: Final = "127.0.0.1:8815"
# What a server accepts that nobody has configured.
DEFAULT_KEY: Final = "dev-key"
KEY_VARIABLE: Final = "PENSTOCK_KEY"
_KEYS: Final = ("accessKey", "keyFile", "keyEnv")
_OTHERS: Final = (
    "server", "tls", "tlsCaFile", "tlsCertificateFile", "tlsKeyFile", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs", "spread",
)  # fmt: skip
CONNECTION_OPTIONS: Final = (*_OTHERS, *_KEYS)
# Somebody waits for the answer: a broker that is away is told after a second, not after ten.
RETRIES: Final = 2


def session() -> "SparkSession":
    """That of the running pipeline."""
    from pyspark.sql import SparkSession

    return SparkSession.active()


def connection_options() -> dict[str, str]:
    """Those of format("penstock"), for every read and write of the pipeline."""
    conf = session().conf
    found = {name: conf.get(PREFIX + name, "") for name in CONNECTION_OPTIONS}
    return with_key({name: value for name, value in found.items() if value})


def with_key(options: Mapping[str, str]) -> dict[str, str]:
    """The same options, with a server and a key where they name none."""
    given = {"server": DEFAULT_SERVER, **options}
    if not any(name in given for name in _KEYS):
        if os.environ.get(KEY_VARIABLE):
            given["keyEnv"] = KEY_VARIABLE
        else:
            given["accessKey"] = DEFAULT_KEY
    return given


def broker() -> Connection:
    """For questions while the project's files are read, from where that happens."""
    options = read_options({**connection_options(), "subscribePattern": ".*"}, streaming=False)
    return resolve(options.connection)


def broker_of(project: Project, server: str | None = None) -> Connection:
    """`server` instead of that of the project. Raises OptionError."""
    known = {**project.defaults, **project.configuration}
    given = {name: known[PREFIX + name] for name in CONNECTION_OPTIONS if PREFIX + name in known}
    if server is not None:
        given["server"] = server
    given = {"fetchOffset.numRetries": str(RETRIES), **with_key(given)}
    return resolve(read_options({**given, "subscribePattern": ".*"}, streaming=False).connection)
