"""`penstock cache get|put`: the cache of Felix, by its protocol.

A value goes to stdout as it is. A key that is not there is "not found", with the exit code of that.
"""

import sys
from typing import Annotated, Final

import typer

from penstock.cli.output import standard_output
from penstock.cli.target import Target, with_target
from penstock.errors import ExitCode, PenstockError

# What Felix's frames hold as base64.
MAX_VALUE_BYTES: Final = 12 * 1024 * 1024

Cache = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="NAME",
        help="tenant/namespace/cache; without it, the one that all share.",
    ),
]


class NotCached(PenstockError):
    exit_code = ExitCode.NOT_FOUND

    key: str

    line = "no value for {key!r} in the cache: never put, expired, or dropped for lack of memory"


class ValueTooLong(PenstockError):
    def __str__(self) -> str:
        return f"the value is longer than {MAX_VALUE_BYTES} bytes, no frame holds it"


def register(app: typer.Typer) -> None:
    cache = typer.Typer(help="Get and put values of the cache (Felix).", no_args_is_help=True)
    app.add_typer(cache, name="cache")
    cache.command("get")(with_target(get))
    cache.command("put")(with_target(put))


def get(
    target: Target,
    key: Annotated[str, typer.Argument(help="The key.")],
    cache: Cache = None,
) -> None:
    """Write the value to stdout."""
    from penstock.cli.quic import cached, checked_cache

    value = cached(target, key, checked_cache(target, cache))
    if value is None:
        raise NotCached(key)
    output = standard_output()
    output.write(value)
    if sys.stdout.isatty():
        output.write(b"\n")
    output.flush()


def put(
    target: Target,
    key: Annotated[str, typer.Argument(help="The key.")],
    message: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="Without it, or -, all of stdin.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="Gone after it, as 30s or 5min.")
    ] = None,
    cache: Cache = None,
) -> None:
    """Store a value under a key, in place of the one before."""
    from penstock.cli.quic import checked_cache, put_cached

    scope = checked_cache(target, cache)
    ttl_s = _seconds(ttl)
    if message is not None and message != "-":
        value = message.encode("utf-8", "surrogateescape")
    else:
        value = sys.stdin.buffer.read(MAX_VALUE_BYTES + 1)
    if len(value) > MAX_VALUE_BYTES:
        raise ValueTooLong()
    put_cached(target, key, value, ttl_s, scope)


def _seconds(text: str | None) -> float | None:
    from penstock.server.config.units import parse_time_us

    if text is None:
        return None
    try:
        return parse_time_us(text) / 1_000_000
    except ValueError as error:
        raise typer.BadParameter(f"--ttl {text}: {error}") from None
