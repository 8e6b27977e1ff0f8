"""The calls of the HTTP API on the dead letters of a topic."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.broker.access.access import Principal
from penstock.broker.delivery.dead_letter_queue import DeadLetter
from penstock.server.http.api import DEFAULT_RECORDS, MAX_RECORDS, Api, number_in
from penstock.server.http.api_types import ReplayRequest


async def dead_letters(api: Api, who: Principal, name: str, query: Mapping[str, str]) -> Any:
    """`next`, if there may be more: go on with after=next."""
    limit = number_in(query, "limit", DEFAULT_RECORDS, MAX_RECORDS)
    letters = await api.broker.dead_letter_queue.page(who, name, limit, query.get("after"))
    shown: dict[str, Any] = {"dead_letters": [_shown(letter) for letter in letters]}
    if letters:
        shown["next"] = letters[-1].id
    # 8 MiB of entries take a while.
    return await asyncio.to_thread(msgspec.json.encode, shown)


async def replay(api: Api, who: Principal, name: str, request: ReplayRequest) -> None:
    await api.broker.dead_letter_queue.replay(who, name, request.id, force=request.force)


async def purge(api: Api, who: Principal, name: str) -> Any:
    return {"freed_bytes": await api.broker.dead_letter_queue.purge(who, name)}


def _shown(letter: DeadLetter) -> dict[str, Any]:
    """msgspec writes bytes as base64."""
    return {
        "id": letter.id,
        "time_us": letter.time_us,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "replays": letter.replays,
        "key": letter.key,
        "value": letter.value,
        "headers": [[name.decode("utf-8", "replace"), v] for name, v in letter.headers],
    }
