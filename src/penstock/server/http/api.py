"""The HTTP API under /api/v1: topics, records, keys, as JSON; other subjects have modules of their own.

Checks every call against the same keys and rules as the wire protocols. Reads are bounded by bytes
and count, and made off the loop (pages.py); lists are bounded by count. Routing, login and error bodies are
in app.py.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Action, Operation
from penstock.broker.broker import Broker
from penstock.broker.errors import BrokerError, Code
from penstock.broker.port import DESCRIBED_AT_ONCE
from penstock.log.engine import PartitionInfo, TopicInfo
from penstock.log.errors import UnknownTopic
from penstock.log.settings import TopicSettings
from penstock.server.http.api_types import KeyRequest, TopicChange, TopicRequest
from penstock.server.http.pages import Page

# Of one answer. A page of a console needs far less; a program asks again from next_offset.
DEFAULT_READ_BYTES: Final = 1024 * 1024
MAX_READ_BYTES: Final = 8 * 1024 * 1024
DEFAULT_RECORDS: Final = 100
MAX_RECORDS: Final = 10_000
# Entries of one list; a program asks again with `after`.
DEFAULT_LISTED: Final = 1_000
MAX_LISTED: Final = 10_000
# Names that a list takes from the engine at a time.
LISTED_AT_ONCE: Final = 500
# What a list tells of a topic, only its readers may know.
READ_ONLY: Final[tuple[Action, ...]] = ("read",)

T = TypeVar("T")
Json = dict[str, Any]
Query = Mapping[str, str]


class Api:
    """One method per call; each takes who asks. Raises BrokerError and the errors of the log."""

    def __init__(self, broker: Broker, defaults: TopicSettings, address: str = "") -> None:
        """`address`: where clients of the wire protocols reach this server."""
        self.broker = broker
        self.address = address
        self.defaults = defaults
        self.engine = broker.engine

    # --- topics ----------------------------------------------------------------------------------

    async def topics(self, who: Principal, query: Query) -> Json:
        self.broker.require(who, Operation.LIST_TOPICS)
        shows = self.broker.access.shows

        def shown(name: str) -> Json | None:
            info = self.engine.topic(name)
            try:
                return self._topic(info) if info and shows(who, name, READ_ONLY) else None
            except UnknownTopic:
                return None  # it was deleted a moment ago

        return await asyncio.to_thread(listed, "topics", query, self.engine.topic_names, shown)

    async def topic(self, who: Principal, name: str) -> Json | bytes:
        self.broker.require(who, Operation.DESCRIBE_TOPIC, name)
        return await self._described(name)

    async def create_topic(self, who: Principal, request: TopicRequest) -> Json | bytes:
        partitions = request.partitions
        if partitions is None:
            partitions = self.broker.options.default_partitions
        settings = self.defaults.changed(request.settings)
        creation = self.broker.create_topic(who, request.name, partitions, settings)
        if creation is not None:
            await creation
        return await self._described(request.name)

    async def change_topic(self, who: Principal, name: str, request: TopicChange) -> Json | bytes:
        change = self.broker.change_topic(who, name, request.settings, request.partitions)
        await change
        return await self._described(name)

    async def delete_topic(self, who: Principal, name: str) -> None:
        await self.broker.delete_topic(who, name)

    async def purge_topic(self, who: Principal, name: str) -> Json | bytes:
        freed_bytes = await self.broker.purge_topic(who, name)
        return await self._described(name, freed_bytes=freed_bytes)

    def info(self, name: str) -> TopicInfo:
        info = self.engine.topic(name)
        if info is None:
            raise BrokerError(Code.UNKNOWN_TOPIC, f"no topic named {name!r}")
        return info

    async def _described(self, name: str, **more: object) -> Json | bytes:
        """Made in a thread, as lists are, where a topic has very many partitions, and written there: that
        takes as long."""
        info = self.info(name)
        if info.partitions <= DESCRIBED_AT_ONCE:
            for asked in [self.engine.fresh_offsets(name, p) for p in range(info.partitions)]:
                if not asked.done:
                    await asked
            return {**self._topic_with_partitions(info), **more}
        return await asyncio.to_thread(
            lambda: msgspec.json.encode({**self._topic_with_partitions(info), **more})
        )

    def _topic(self, info: TopicInfo) -> Json:
        """Those of its partitions that were never written add nothing to it."""
        written = self.engine.written_partitions(info.name)
        return self._summary(info, [self.engine.partition_info(info.name, p) for p in written])

    def _summary(self, info: TopicInfo, details: Sequence[PartitionInfo]) -> Json:
        return {
            "name": info.name,
            "partitions": info.partitions,
            "records": sum(one.latest - one.earliest for one in details),
            "bytes": sum(one.size_bytes for one in details),
            "settings": msgspec.to_builtins(info.settings),
        }

    def _topic_with_partitions(self, info: TopicInfo) -> Json:
        details = [self.engine.partition_info(info.name, p) for p in range(info.partitions)]
        return {
            **self._summary(info, details),
            # All that may still be needed; what each open partition really has stands below.
            "keys_needed": self.engine.keys_needed(info.name),
            "partition_details": [
                {
                    "partition": one.partition,
                    "earliest": one.earliest,
                    "latest": one.latest,
                    "bytes": one.size_bytes,
                    "segments": one.segments,
                    "stopped": one.stopped,
                    "damages": list(one.damages),
                    "key_ids": one.key_ids,
                }
                for one in details
            ],
        }

    # --- records ---------------------------------------------------------------------------------

    async def records(self, who: Principal, name: str, query: Query) -> Page:
        """Some records from one place on; go on with next_offset until it is end_offset."""
        self.broker.require(who, Operation.READ_RECORDS, name)
        self.info(name)
        partition = number_in(query, "partition", 0, 2**31 - 1)
        max_bytes = number_in(query, "max_bytes", DEFAULT_READ_BYTES, MAX_READ_BYTES)
        limit = number_in(query, "limit", DEFAULT_RECORDS, MAX_RECORDS)
        offset = await self._start(name, partition, query)
        found = await self.broker.read(who, name, partition, offset, max_bytes)
        return Page(partition, found, limit)

    async def offset(self, who: Principal, name: str, query: Query) -> Json:
        """Where a place is: the offset of a time, or the first or last one."""
        self.broker.require(who, Operation.READ_RECORDS, name)
        self.info(name)
        partition = number_in(query, "partition", 0, 2**31 - 1)
        earliest, latest = await self.engine.fresh_offsets(name, partition)
        found = await self._start(name, partition, query)
        return {"partition": partition, "offset": found, "earliest": earliest, "latest": latest}

    async def _start(self, name: str, partition: int, query: Query) -> int:
        earliest, latest = await self.engine.fresh_offsets(name, partition)
        given = [key for key in ("offset", "time_us", "from") if key in query]
        if len(given) > 1:
            raise invalid(f"give one of {', '.join(given)}, not several")
        if "offset" in query:
            return number_in(query, "offset", 0, 2**63 - 1)
        if "time_us" in query:
            time_us = number_in(query, "time_us", 0, 2**63 - 1)
            return await self.engine.offset_at_time(name, partition, time_us)
        start = query.get("from", "earliest")
        if start not in ("earliest", "latest"):
            raise invalid("from: expected earliest or latest")
        return earliest if start == "earliest" else latest

    # --- keys ------------------------------------------------------------------------------------

    async def keys(self, who: Principal, query: Query) -> Json:
        self.broker.require(who, Operation.LIST_KEYS)
        keys = await asyncio.to_thread(self.broker.access.list_keys)
        found = {key.name: key for key in keys}

        def names_after(after: str | None, limit: int) -> list[str]:
            return sorted(name for name in found if after is None or name > after)[:limit]

        return listed("keys", query, names_after, lambda name: msgspec.to_builtins(found[name]))

    async def create_key(self, who: Principal, request: KeyRequest) -> Json:
        """The only answer that ever holds the key itself."""
        self.broker.require(who, Operation.CREATE_KEY)
        key = await asyncio.to_thread(
            self.broker.accounts.create_key, who, request.name, request.role, request.topics
        )
        return {
            "name": request.name,
            "role": request.role,
            "topics": list(request.topics),
            "key": key,
        }

    async def revoke_key(self, who: Principal, name: str, query: Query) -> None:
        self.broker.require(who, Operation.REVOKE_KEY)
        revoke = self.broker.accounts.revoke_key
        await asyncio.to_thread(revoke, who, name, force=is_forced(query))


def listed(
    what: str,
    query: Query,
    names_after: Callable[[str | None, int], list[str]],
    show: Callable[[str], Json | None],
) -> Json:
    """One part of a list, in the order of names. `next`, if there are more: go on with after=next.

    Runs in a thread. Nothing but the names of this part is looked at.
    """
    limit = number_in(query, "limit", DEFAULT_LISTED, MAX_LISTED)
    if not limit:
        raise invalid(f"limit: expected a number from 1 to {MAX_LISTED}")
    after = query.get("after")
    shown: list[Json] = []
    last = ""
    while names := names_after(after, LISTED_AT_ONCE):
        for name in names:
            one = show(name)
            if one is None:
                continue
            if len(shown) >= limit:
                return {what: shown, "next": last}
            shown.append(one)
            last = name
        after = names[-1]
    return {what: shown}


def invalid(detail: str) -> BrokerError:
    return BrokerError(Code.INVALID_REQUEST, detail)


def is_forced(query: Query) -> bool:
    force = query.get("force", "false")
    if force not in ("true", "false"):
        raise invalid("force: expected true or false")
    return force == "true"


def number_in(query: Query, name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= most):
        raise invalid(f"{name}: expected a number from 0 to {most}")
    return int(text)
