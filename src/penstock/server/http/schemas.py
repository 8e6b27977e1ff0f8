"""The calls of the HTTP API on schemas. A topic is bound by its settings: PATCH topics/{name}."""

from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.schemas.registry import Schema
from penstock.server.http.api import Api, Json, Query, invalid, listed, number_in
from penstock.server.http.api_types import MessageToValidate, SchemaChange, SchemaRequest

# Of the wire: versions are a u32 there.
MAX_VERSION: Final = (1 << 32) - 1


async def list_schemas(api: Api, who: Principal, query: Query) -> Json:
    """Every version of every schema, or of one, without the definitions."""
    rows = await api.broker.schema_operations.schemas(who, query.get("name", ""))
    by_name: dict[str, list[Schema]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)

    def names_after(after: str | None, limit: int) -> list[str]:
        return [name for name in by_name if after is None or name > after][:limit]

    def show_name(name: str) -> Json:
        last = by_name[name][-1]
        return {
            "name": name,
            "type": last.kind,
            "versions": [one.version for one in by_name[name]],
            "compatibility": last.compatibility,
        }

    return listed("schemas", query, names_after, show_name)


async def register(api: Api, who: Principal, request: SchemaRequest) -> Json:
    definition = request.definition.encode()
    registered = await api.broker.schema_operations.register(
        who, request.name, request.type, definition, request.compatibility
    )
    return _shown(registered)


def show(api: Api, who: Principal, name: str, query: Query) -> Json:
    version = number_in(query, "version", 0, MAX_VERSION)
    return _shown(api.broker.schema_operations.schema(who, name, version))


async def change(api: Api, who: Principal, name: str, request: SchemaChange) -> Json:
    operations = api.broker.schema_operations
    return _shown(await operations.set_compatibility(who, name, request.compatibility))


async def delete(api: Api, who: Principal, name: str, query: Query) -> None:
    version = number_in(query, "version", 0, MAX_VERSION)
    await api.broker.schema_operations.delete(who, name, version)


async def validate(api: Api, who: Principal, name: str, request: MessageToValidate) -> Json:
    if (request.text is None) == (request.base64 is None):
        raise invalid("give the message as text or as base64")
    message = request.text.encode() if request.text is not None else request.base64 or b""
    errors = await api.broker.schema_operations.validate(who, name, message, request.version)
    return {"valid": not errors, "errors": errors}


def _shown(schema: Schema) -> Json:
    return {
        "name": schema.name,
        "version": schema.version,
        "type": schema.kind,
        "compatibility": schema.compatibility,
        "created_us": schema.created_us,
        "definition": schema.definition.decode("utf-8", "replace"),
    }
