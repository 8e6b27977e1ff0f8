"""Calls of the HTTP API on Felix's tenants, namespaces, streams and caches. A stream is a topic."""

import asyncio

import msgspec

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.tenants.names import Kind
from penstock.broker.tenants.tenants import Row
from penstock.server.http.api import Api, Json, Query, is_forced, listed
from penstock.server.http.api_types import TenantRequest, TopicRequest


async def tenants(api: Api, who: Principal, query: Query) -> Json:
    return await _listed(api, who, Kind.TENANT, "tenants", query)


async def namespaces(api: Api, who: Principal, query: Query) -> Json:
    return await _listed(api, who, Kind.NAMESPACE, "namespaces", query)


async def streams(api: Api, who: Principal, query: Query) -> Json:
    return await _listed(api, who, Kind.STREAM, "streams", query)


async def caches(api: Api, who: Principal, query: Query) -> Json:
    return await _listed(api, who, Kind.CACHE, "caches", query)


async def _listed(api: Api, who: Principal, kind: Kind, what: str, query: Query) -> Json:
    api.broker.require(who, Operation.LIST_TENANTS)
    shows, all_rows = api.broker.access.shows, api.broker.tenants.rows
    rows = await asyncio.to_thread(all_rows, kind, lambda name: shows(who, name))
    found = {row.name: row for row in rows}

    def names_after(after: str | None, limit: int) -> list[str]:
        return [name for name in found if after is None or name > after][:limit]

    return listed(what, query, names_after, lambda name: _row(found[name], kind))


def _row(row: Row, kind: Kind) -> Json:
    """Without what such a thing cannot hold."""
    fields: Json = msgspec.to_builtins(row)
    if kind.parts == Kind.STREAM.parts:
        for name in ("namespaces", "streams", "caches"):
            del fields[name]
    elif kind is Kind.NAMESPACE:
        del fields["namespaces"]
    if kind is Kind.STREAM:  # what a topic tells of itself stands at topics/
        del fields["created_us"], fields["configured"]
    return fields


async def create_tenant(api: Api, who: Principal, request: TenantRequest) -> Json:
    await api.broker.tenants.create(who, Kind.TENANT, request.name)
    return {"name": request.name}


async def create_namespace(api: Api, who: Principal, request: TenantRequest) -> Json:
    await api.broker.tenants.create(who, Kind.NAMESPACE, request.name)
    return {"name": request.name}


async def create_cache(api: Api, who: Principal, request: TenantRequest) -> Json:
    await api.broker.tenants.create(who, Kind.CACHE, request.name)
    return {"name": request.name}


async def create_stream(api: Api, who: Principal, request: TopicRequest) -> Json | bytes:
    """As a topic is created, in a namespace that is there."""
    api.broker.tenants.check_stream(who, request.name)
    return await api.create_topic(who, request)


async def delete_tenant(api: Api, who: Principal, name: str, query: Query) -> None:
    await api.broker.tenants.delete(who, Kind.TENANT, name, force=is_forced(query))


async def delete_namespace(api: Api, who: Principal, name: str, query: Query) -> None:
    await api.broker.tenants.delete(who, Kind.NAMESPACE, name, force=is_forced(query))


async def delete_stream(api: Api, who: Principal, name: str) -> None:
    await api.broker.tenants.delete(who, Kind.STREAM, name, force=False)


async def delete_cache(api: Api, who: Principal, name: str) -> None:
    await api.broker.tenants.delete(who, Kind.CACHE, name, force=False)
