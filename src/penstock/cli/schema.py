"""`penstock schema register|list|show|validate|bind|unbind|delete|compat`, over the HTTP API."""

import base64
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.cli.output import add_listing, print_json, print_table
from penstock.cli.target import Target, with_target
from penstock.cli.topic import AsJson, call_topic
from penstock.errors import ExitCode

Name = Annotated[str, typer.Argument(help="Name of the schema.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic.")]
File = Annotated[str, typer.Argument(help="A file, or - for standard input.")]
Version = Annotated[int, typer.Option("-v", "--version", min=0, help="0: the latest.")]
# By the end of a file's name.
TYPES: Final = {".json": "json", ".avsc": "avro", ".proto": "protobuf"}


class Type(StrEnum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Compatibility(StrEnum):
    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"
    BACKWARD_TRANSITIVE = "backward_transitive"
    FORWARD_TRANSITIVE = "forward_transitive"
    FULL_TRANSITIVE = "full_transitive"


class OnInvalid(StrEnum):
    REJECT = "reject"
    DLQ = "dlq"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Schemas of messages, and topics bound to them.", no_args_is_help=True)
    group.command("register")(with_target(register_schema))
    add_listing(group, with_target(list_schemas))
    group.command("show")(with_target(show_schema))
    group.command("validate")(with_target(validate_message))
    group.command("bind")(with_target(bind_topic))
    group.command("unbind")(with_target(unbind_topic))
    group.command("delete")(with_target(delete_schema))
    group.command("compat")(with_target(set_compatibility))
    app.add_typer(group, name="schema")


def register_schema(
    target: Target,
    name: Name,
    file: File,
    kind: Annotated[
        Type | None, typer.Option("-t", "--type", help="By default as the file's name ends.")
    ] = None,
    compatibility: Annotated[
        Compatibility | None, typer.Option("--compat", help="With older versions.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register a definition; the same one again is the same version."""
    chosen = kind or TYPES.get(Path(file).suffix, "json")
    try:
        definition = _read(file).decode()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file}: a definition is UTF-8") from None
    body: dict[str, Any] = {"name": name, "type": chosen, "definition": definition}
    if compatibility is not None:
        body["compatibility"] = compatibility
    registered = target.api().call("POST", "/schemas", body)
    if as_json:
        print_json(registered)
    typer.echo(f"schema {name} has version {registered['version']}", err=True)


def list_schemas(target: Target, as_json: AsJson = False) -> None:
    """Show all schemas."""
    schemas = list(target.api().list("schemas"))
    if not as_json:
        schemas = [{**one, "versions": " ".join(map(str, one["versions"]))} for one in schemas]
    print_table(schemas, ("name", "type", "versions", "compatibility"), as_json)


def show_schema(target: Target, name: Name, version: Version = 0, as_json: AsJson = False) -> None:
    """Print the definition of a schema."""
    schema = _get(target, name, version)
    if as_json:
        print_json(schema)
        return
    typer.echo(
        f"{name} version {schema['version']}, {schema['type']}, {schema['compatibility']}", err=True
    )
    typer.echo(schema["definition"])


def validate_message(
    target: Target, name: Name, file: File = "-", version: Version = 0, as_json: AsJson = False
) -> None:
    """Check a message against a schema; the exit code tells whether it fits."""
    content = base64.b64encode(_read(file)).decode()
    path = f"{_path(name)}/validate"
    found = target.api().call("POST", path, {"base64": content, "version": version})
    if as_json:
        print_json(found)
    for error in found["errors"]:
        typer.echo(error, err=True)
    if not found["valid"]:
        raise typer.Exit(ExitCode.FAILED)
    typer.echo("valid", err=True)


def bind_topic(
    target: Target,
    topic: Topic,
    name: Name,
    version: Version = 0,
    on_invalid: Annotated[
        OnInvalid, typer.Option("--on-invalid", help="Refuse a message, or make it a dead letter.")
    ] = OnInvalid.REJECT,
) -> None:
    """From now on every message of the topic must fit the schema."""
    settings = {"schema": name, "schema_version": version, "on_invalid": on_invalid}
    _get(target, name, version)
    call_topic(target.api(), "PATCH", topic, body={"settings": settings})
    typer.echo(f"topic {topic} is bound to schema {name}", err=True)


def unbind_topic(target: Target, topic: Topic) -> None:
    """The topic takes any message again."""
    settings = {"schema": "", "schema_version": 0, "on_invalid": "reject"}
    call_topic(target.api(), "PATCH", topic, body={"settings": settings})
    typer.echo(f"topic {topic} is bound to no schema", err=True)


def delete_schema(target: Target, name: Name, version: Version = 0) -> None:
    """Delete one version, or all of them."""
    target.api().call("DELETE", f"{_path(name)}?version={version}")
    what = f"version {version} of schema {name}" if version else f"schema {name}"
    typer.echo(f"{what} is deleted", err=True)


def set_compatibility(
    target: Target,
    name: Name,
    compatibility: Annotated[
        Compatibility | None, typer.Argument(help="Without one: show it.")
    ] = None,
) -> None:
    """Which versions a new one has to fit."""
    if compatibility is None:
        typer.echo(_get(target, name, 0)["compatibility"])
        return
    target.api().call("PATCH", _path(name), {"compatibility": compatibility})
    typer.echo(f"schema {name} is {compatibility}", err=True)


def _get(target: Target, name: str, version: int) -> Any:
    return target.api().get(f"{_path(name)}?version={version}")


def _path(name: str) -> str:
    from penstock.cli.http import segment

    return f"/schemas/{segment(name)}"


def _read(file: str) -> bytes:
    return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
