"""`penstock felix tenant|namespace|stream|cache create|ls|delete`, over the HTTP API.

A stream is a topic; `penstock topic` changes and describes it.
"""

from typing import Annotated, Any, Final

import typer

from penstock.cli.output import add_listing, print_json, print_table
from penstock.cli.target import Target, with_target
from penstock.cli.topic import AsJson, Partitions, Settings, Yes, parse_settings

PATH: Final = "/felix"
COUNTED: Final = ("name", "namespaces", "streams", "caches", "since")

Force = Annotated[bool, typer.Option("--force", help="Also with all that is in it.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="Its name, without a /.")]
Namespace = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", help="Its full name.")]
Stream = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE/STREAM", help="Its full name.")]
Cache = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE/CACHE", help="Its full name.")]


def register(app: typer.Typer) -> None:
    felix = typer.Typer(
        help="Tenants, namespaces, streams and caches of Felix.", no_args_is_help=True
    )
    for name, words, create, show, delete in (
        ("tenant", "Tenants.", create_tenant, list_tenants, delete_tenant),
        ("namespace", "Namespaces of tenants.", create_namespace, list_namespaces, delete_namespace),
        ("stream", "Streams, which are topics.", create_stream, list_streams, delete_stream),
        ("cache", "Caches: scopes of keys and values.", create_cache, list_caches, delete_cache),
    ):  # fmt: skip
        group = typer.Typer(help=words, no_args_is_help=True)
        add_listing(group, with_target(show))
        group.command("create")(with_target(create))
        group.command("delete")(with_target(delete))
        felix.add_typer(group, name=name)
    app.add_typer(felix, name="felix")


# --- tenants and namespaces -----------------------------------------------------------------------


def create_tenant(target: Target, name: Tenant) -> None:
    """Create a tenant."""
    _create(target, "tenant", name)


def list_tenants(target: Target, as_json: AsJson = False) -> None:
    """Show all tenants, also those that only a stream or a cache names."""
    _list(target, "tenants", COUNTED, as_json)


def delete_tenant(target: Target, name: Tenant, force: Force = False, yes: Yes = False) -> None:
    """Delete a tenant that is empty, or with --force all that is in it."""
    _delete(target, "tenant", name, force=force, yes=yes)


def create_namespace(target: Target, name: Namespace) -> None:
    """Create a namespace in a tenant that is there."""
    _create(target, "namespace", name)


def list_namespaces(target: Target, as_json: AsJson = False) -> None:
    """Show all namespaces."""
    _list(target, "namespaces", ("name", "streams", "caches", "since"), as_json)


def delete_namespace(
    target: Target, name: Namespace, force: Force = False, yes: Yes = False
) -> None:
    """Delete a namespace that is empty, or with --force all that is in it."""
    _delete(target, "namespace", name, force=force, yes=yes)


# --- streams and caches ---------------------------------------------------------------------------


def create_stream(
    target: Target,
    name: Stream,
    partitions: Partitions = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Create a stream in a namespace that is there: a topic of the same name."""
    body: dict[str, Any] = {"name": name, "settings": parse_settings(settings or [])}
    if partitions is not None:
        body["partitions"] = partitions
    made = target.api().call("POST", f"{PATH}/streams", body)
    if as_json:
        print_json(made)
    typer.echo(f"stream {name} has {made['partitions']} partition(s)", err=True)


def list_streams(target: Target, as_json: AsJson = False) -> None:
    """Show all streams."""
    _list(target, "streams", ("name",), as_json)


def delete_stream(target: Target, name: Stream, yes: Yes = False) -> None:
    """Delete a stream with its events. Its subscriptions end."""
    _delete(target, "stream", name, yes=yes)


def create_cache(target: Target, name: Cache) -> None:
    """Create a cache in a namespace that is there."""
    _create(target, "cache", name)


def list_caches(target: Target, as_json: AsJson = False) -> None:
    """Show all caches."""
    _list(target, "caches", ("name", "since"), as_json)


def delete_cache(target: Target, name: Cache, yes: Yes = False) -> None:
    """Delete a cache with its values."""
    _delete(target, "cache", name, yes=yes)


# --- what they share ------------------------------------------------------------------------------


def _create(target: Target, word: str, name: str) -> None:
    target.api().call("POST", f"{PATH}/{word}s", {"name": name})
    typer.echo(f"{word} {name} is created", err=True)


def _list(target: Target, what: str, columns: tuple[str, ...], as_json: bool) -> None:
    from penstock.cli.key import day

    rows = list(target.api().list(what, PATH))
    if not as_json:
        for row in rows:
            created_us = row.get("created_us")
            by = "configuration" if row.get("configured") else "-"
            row["since"] = by if created_us is None else day(created_us)
    print_table(rows, columns, as_json)


def _delete(target: Target, word: str, name: str, *, force: bool = False, yes: bool) -> None:
    from penstock.cli.http import segment

    with_all = " and all that is in it" if force or word in ("stream", "cache") else ""
    if with_all and not yes:
        typer.confirm(f"Delete {word} {name}{with_all} for good?", err=True, abort=True)
    query = {"force": "true"} if force else None
    target.api().call("DELETE", f"{PATH}/{word}s/{segment(name)}", query=query)
    typer.echo(f"{word} {name} is deleted", err=True)
