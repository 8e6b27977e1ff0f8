"""The calls of the HTTP API on groups: offsets and lag, members and what each reads, commit, reset, delete.

A member that joins here is one as those of FlyMQ's JOIN_GROUP: it keeps its partitions while it says in
time that it is alive.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code
from penstock.broker.port import DESCRIBED_AT_ONCE
from penstock.broker.sharing import Assignment, SharedMember
from penstock.log.engine import Pending
from penstock.log.errors import InvalidGroupName
from penstock.names import flaw
from penstock.server.http.api import Api, Json, Query, invalid, listed
from penstock.server.http.api_types import (
    AtTime,
    GroupCommit,
    GroupJoin,
    GroupMember,
    GroupReset,
)

# Partitions of a group that are reset in one turn of the event loop: a millisecond or two.
STEPS_AT_ONCE: Final = 50
MAX_OFFSET: Final = (1 << 63) - 1
MILLISECOND_US: Final = 1_000

Offsets = Mapping[tuple[str, int], int]


# --- looking at them ------------------------------------------------------------------------------


async def groups(api: Api, who: Principal, query: Query) -> Json:
    broker, engine = api.broker, api.engine
    broker.require(who, Operation.LIST_GROUPS)
    # Taken here: they belong to the event loop.
    without_offsets = sorted({*broker.members.groups(), *broker.sharing.groups()})
    counts = broker.sharing.counts()
    shared: dict[str, list[str]] = {}
    for one, topic in counts:
        shared.setdefault(one, []).append(topic)

    def names_after(after: str | None, limit: int) -> list[str]:
        more = [name for name in without_offsets if after is None or name > after]
        return sorted({*engine.group_names(after, limit), *more})[:limit]

    def shown(name: str) -> Json | None:
        offsets = _offsets(api, who, dict(engine.group(name)))
        visible = [one for one in shared.get(name, ()) if _may_see(api, who, one)]
        if not offsets and not visible and not _subscribers(api, who, name):
            return None
        members = sum(counts[name, topic] for topic in visible)
        return {
            "name": name,
            "offsets": offsets,
            "members": members,
            "committed_us": engine.group_updated_us(name),
        }

    return await asyncio.to_thread(listed, "groups", query, names_after, shown)


async def group(api: Api, who: Principal, name: str) -> Json:
    """Made in a thread where a group has offsets on very many partitions."""
    api.broker.require(who, Operation.LIST_GROUPS)
    committed = dict(api.engine.group(name))
    members = [one for one in api.broker.sharing.describe(name) if _may_see(api, who, one.topic)]
    readers = {(one.topic, number): one.member for one in members for number in one.partitions}
    if len(committed) <= DESCRIBED_AT_ONCE:
        offsets = _offsets(api, who, committed, readers)
    else:
        offsets = await asyncio.to_thread(_offsets, api, who, committed, readers)
    subscribers = _subscribers(api, who, name)
    if not offsets and not members and not subscribers:
        raise BrokerError(Code.UNKNOWN_GROUP, f"no group named {name!r}")
    return {
        "name": name,
        "committed_us": api.engine.group_updated_us(name),
        "offsets": offsets,
        "members": [_member(one) for one in members],
        "connections": subscribers,
        "held": _held(api, who, name),
    }


def _held(api: Api, who: Principal, name: str) -> dict[str, list[int]]:
    """By topic: the partitions that this server hands out for the group, to members and to Fujin's readers.
    Where there are other servers, they have the others."""
    broker = api.broker
    found = {**broker.cursors.held(name), **broker.sharing.held(name)}
    return {topic: found[topic] for topic in sorted(found) if _may_see(api, who, topic)}


def _may_see(api: Api, who: Principal, topic: str) -> bool:
    return api.broker.access.permits(who, Operation.READ_OFFSETS, topic)


def _subscribers(api: Api, who: Principal, name: str) -> dict[str, int]:
    """By topic: the connections that read it for the group, by SUBSCRIBE or as its members."""
    members = api.broker.members
    return {
        topic: members.count(name, topic)
        for topic in sorted(members.topics(name))
        if _may_see(api, who, topic)
    }


def _offsets(
    api: Api,
    who: Principal,
    committed: Offsets,
    readers: Mapping[tuple[str, int], str] | None = None,
) -> list[Json]:
    """Those of topics that `who` may read, and where `readers` is given who reads each partition."""
    found: list[Json] = []
    for topic, partition in sorted({*committed, *(readers or ())}):
        if api.engine.topic(topic) is None or not _may_see(api, who, topic):
            continue
        offset = committed.get((topic, partition))
        earliest, latest = api.engine.offsets(topic, partition)
        begin = earliest if offset is None else offset
        found.append(
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "latest": latest,
                "lag": max(latest - begin, 0),
            }
        )
        if readers is not None:
            found[-1]["member"] = readers.get((topic, partition))
    return found


def _member(one: SharedMember) -> Json:
    return {
        "member": one.member,
        "topic": one.topic,
        "user": one.owner,
        "partitions": one.partitions,
        "generation": one.generation,
        "silent_ms": one.silent_us // MILLISECOND_US,
        "timeout_ms": one.timeout_us // MILLISECOND_US,
    }


# --- members --------------------------------------------------------------------------------------


async def join(api: Api, who: Principal, name: str, request: GroupJoin) -> Json:
    api.broker.require(who, Operation.SUBSCRIBE, request.topic)
    _check_name(api, name)
    place = name, request.topic, api.info(request.topic).partitions
    sharing = api.broker.sharing
    found = sharing.join(*place, who.name, request.member, request.timeout_ms)
    ready = sharing.ready(name, request.topic)
    if ready is not None:
        await ready
        # Its time counts from now on, however long that took.
        found = sharing.join(*place, who.name, found.member, request.timeout_ms)
    return _assigned(found)


async def heartbeat(api: Api, who: Principal, name: str, request: GroupMember) -> Json:
    api.broker.require(who, Operation.SUBSCRIBE, request.topic)
    place = name, request.topic, api.info(request.topic).partitions
    return _assigned(api.broker.sharing.heartbeat(*place, who.name, request.member))


async def leave(api: Api, who: Principal, name: str, request: GroupMember) -> None:
    api.broker.require(who, Operation.SUBSCRIBE, request.topic)
    place = name, request.topic, api.info(request.topic).partitions
    api.broker.sharing.leave(*place, who.name, request.member)


def _assigned(found: Assignment) -> Json:
    return {
        "member": found.member,
        "generation": found.generation,
        "partitions": found.partitions,
    }


# --- changing them --------------------------------------------------------------------------------


async def commit(api: Api, who: Principal, name: str, request: GroupCommit) -> None:
    """Durable when it is answered. For those who read the topic; `reset` is for administrators."""
    api.broker.require(who, Operation.COMMIT_OFFSETS, request.topic)
    _check_name(api, name)
    api.engine.offsets(request.topic, request.partition)
    if not 0 <= request.offset <= MAX_OFFSET:
        raise invalid(f"offset {request.offset}: expected 0 to {MAX_OFFSET}")
    place = request.topic, request.partition, request.offset
    change = api.broker.commit_offset(who, name, *place)
    if change is not None:
        await change


async def reset(api: Api, who: Principal, name: str, request: GroupReset) -> Json:
    api.broker.require(who, Operation.RESET_GROUP, request.topic)
    info = api.info(request.topic)
    one = request.partition
    partitions = range(info.partitions) if one is None else (one,)
    # All targets are found before the first is changed.
    targets: list[tuple[int, int]] = []
    for partition in partitions:
        targets.append((partition, await _target(api, request.topic, partition, request.to)))
        await _let_others_in(len(targets))
    changes: list[Pending[object]] = []
    for partition, offset in targets:
        changes.append(api.broker.reset_offset(who, name, request.topic, partition, offset))
        await _let_others_in(len(changes))
    for change in changes:
        await change
    return await group(api, who, name)


async def _target(api: Api, topic: str, partition: int, to: str | int | AtTime) -> int:
    earliest, latest = await api.engine.fresh_offsets(topic, partition)
    if isinstance(to, AtTime):
        return await api.engine.offset_at_time(topic, partition, to.time_us)
    if isinstance(to, str):
        if to not in ("earliest", "latest"):
            raise invalid('to: expected "earliest", "latest", an offset or {"time_us": ...}')
        return earliest if to == "earliest" else latest
    if not earliest <= to <= latest:
        detail = f"offset {to} is outside {earliest} to {latest} of partition {partition}"
        raise BrokerError(Code.OFFSET_OUT_OF_RANGE, detail)
    return to


async def delete(api: Api, who: Principal, name: str, query: Query) -> None:
    """Its offsets on one topic, or on all."""
    await api.broker.delete_group(who, name, query.get("topic"))


def _check_name(api: Api, name: str) -> None:
    """One that could never have an offset."""
    reason = flaw(name)
    if reason is not None and not api.engine.group(name):
        raise InvalidGroupName(name, reason)


async def _let_others_in(done: int) -> None:
    """Work in many small steps gives the event loop back now and then."""
    if done % STEPS_AT_ONCE == 0:
        await asyncio.sleep(0)
