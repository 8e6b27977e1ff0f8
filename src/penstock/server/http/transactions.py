"""The calls of the HTTP API on transactions: begin, stage, commit, roll back, and who has which open.

They are those of FlyMQ: one that was begun here may be committed there by the same user or key. Flight's
transactions, which many tasks stage, are not among them.
"""

from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.transactions import OpenTransaction, not_found, owner_id
from penstock.server.http.api import Api, Json, Query, listed
from penstock.server.http.api_types import StageRequest
from penstock.server.http.publishing import plain_values, rows_of

MILLISECOND_US: Final = 1_000


async def begin(api: Api, who: Principal) -> Json:
    transaction_id = api.broker.transactions.begin(who, None)
    timeout_ms = api.broker.options.transaction_time_us // MILLISECOND_US
    return {"id": transaction_id, "timeout_ms": timeout_ms}


async def stage(api: Api, who: Principal, name: str, request: StageRequest) -> Json:
    """Kept for the commit; nobody sees them before."""
    api.broker.require(who, Operation.PUBLISH, request.topic)
    rows = await rows_of(request.records, request.encoding)
    values = plain_values(rows, "a message of a transaction")
    moving = api.broker.transactions.stage(who, None, name, request.topic, values)
    if moving is not None:
        await moving
    return {"id": name, "staged": len(values)}


async def commit(api: Api, who: Principal, name: str) -> Json:
    """All of it is durable and visible; repeating it changes nothing."""
    await api.broker.transactions.commit(who, None, name)
    return {"id": name, "state": "committed"}


async def roll_back(api: Api, who: Principal, name: str) -> None:
    """One's own."""
    change = api.broker.transactions.roll_back(who, None, name)
    if change is None:
        raise not_found(name)
    await change


async def abort(api: Api, who: Principal, name: str) -> None:
    """Whoever began it, for administrators: every one that is not being committed."""
    change = api.broker.transactions.roll_back_any(who, name)
    if change is None:
        raise not_found(name)
    await change


async def transactions(api: Api, who: Principal, query: Query) -> Json:
    """One's own; for administrators of the server those of all."""
    api.broker.require(who, Operation.OPEN_TRANSACTION)
    found = {one.id: one for one in _visible(api, who)}
    names = sorted(found)

    def names_after(after: str | None, limit: int) -> list[str]:
        return [name for name in names if after is None or name > after][:limit]

    return listed("transactions", query, names_after, lambda name: _shown(api, found[name]))


async def transaction(api: Api, who: Principal, name: str) -> Json:
    api.broker.require(who, Operation.OPEN_TRANSACTION)
    for one in _visible(api, who):
        if one.id == name:
            return _shown(api, one)
    raise not_found(name)


def _visible(api: Api, who: Principal) -> list[OpenTransaction]:
    everything = api.broker.access.permits(who, Operation.END_ANY_TRANSACTION)
    return [
        one
        for one in api.broker.transactions
        if everything or (one.user is None and one.owner.id == owner_id(who))
    ]


def _shown(api: Api, one: OpenTransaction) -> Json:
    """`topics`: with the records that wait in memory; large transactions have parts in files."""
    return {
        "id": one.id,
        "owner": one.owner.principal.name,
        "state": "open" if one.ending is None else "committing",
        "begun_us": one.begun_us,
        "connection": one.user is not None,
        "staged_bytes": one.staged_bytes,
        "topics": {topic: len(values) for topic, values in one.records.items()},
    }
