"""The calls of the HTTP API on transactions: begin, stage, commit, roll back, and who has which open.

They are those of FlyMQ: one that was begun here may be committed there by the same user or key. Flight's
transactions, which many tasks stage, are shown and can be rolled back.
"""

from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.named_transactions import NamedTransaction, NamedTransactions
from penstock.broker.transactions import OpenTransaction, not_found, owner_id
from penstock.server.http.api import Api, Json, Query, invalid, listed
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
        named = await _named(api, who, name, own=True)
        change = NamedTransactions(api.broker).roll_back(who, named)
    await change


async def abort(api: Api, who: Principal, name: str) -> None:
    """Whoever began it, for administrators: every one that is not being committed."""
    change = api.broker.transactions.roll_back_any(who, name)
    if change is None:
        named = await _named(api, who, name, own=False)
        change = NamedTransactions(api.broker).roll_back(who, named)
    await change


async def _named(api: Api, who: Principal, name: str, *, own: bool) -> NamedTransaction:
    """One of Flight's. Two owners may have given the same name: then one's own is meant."""
    visible = await NamedTransactions(api.broker).visible(who)
    found = [one for one in visible if one.id == name and (not own or one.owner == who.name)]
    mine = [one for one in found if one.owner == who.name]
    if not found:
        raise not_found(name)
    if len(found) > 1 and not mine:
        owners = ", ".join(sorted(one.owner for one in found))
        raise invalid(
            f"transaction {name!r} is one of several: {owners} have it; roll it back as one of them"
        )
    return (mine or found)[0]


async def transactions(api: Api, who: Principal, query: Query) -> Json:
    """One's own; for administrators of the server those of all."""
    api.broker.require(who, Operation.OPEN_TRANSACTION)
    found: dict[str, Json] = {one.id: _shown(api, one) for one in _visible(api, who)}
    for named in await NamedTransactions(api.broker).visible(who):
        found[named.id if named.id not in found else f"{named.id}\n{named.owner}"] = _shown_named(
            named
        )
    names = sorted(found)

    def names_after(after: str | None, limit: int) -> list[str]:
        return [name for name in names if after is None or name > after][:limit]

    return listed("transactions", query, names_after, lambda name: found[name])


async def transaction(api: Api, who: Principal, name: str) -> Json:
    api.broker.require(who, Operation.OPEN_TRANSACTION)
    for one in _visible(api, who):
        if one.id == name:
            return _shown(api, one)
    return _shown_named(await _named(api, who, name, own=False))


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


def _shown_named(one: NamedTransaction) -> Json:
    """`topics`: with the bytes that are staged for them."""
    return {
        "id": one.id,
        "owner": one.owner,
        "state": one.found.state,
        "begun_us": one.found.begun_us,
        "used_us": one.found.updated_us,
        "deadline_us": one.found.deadline_us,
        "connection": False,
        "staged_bytes": sum(one.found.staged.values()),
        "topics": dict(one.found.staged),
    }
