"""The calls of the HTTP API on delayed messages: which are pending, and cancel. They are made by a publish
with `delay_ms`."""

from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.delayed.listing import DelayedMessage, page
from penstock.broker.errors import BrokerError, Code
from penstock.server.http.api import DEFAULT_RECORDS, Api, Json, Query, number_in

ID_PREFIX: Final = "delayed-"
# Each is read from the disk, and its topic is asked for.
MAX_LISTED: Final = 1_000
# An id has 64 bits.
MAX_ID_DIGITS: Final = 19
MAX_SHOWN: Final = 40


async def delayed(api: Api, who: Principal, query: Query) -> Json:
    """Those of topics that `who` may read, hour by hour, within an hour in the order of their arrival.
    `pending` counts all of the server."""
    api.broker.require(who, Operation.LIST_DELAYED)
    limit = number_in(query, "limit", DEFAULT_RECORDS, MAX_LISTED)
    after = number_of(query["after"]) if "after" in query else None
    found, following = await page(api.broker, who, limit, after, query.get("topic"))
    shown: Json = {
        "pending": api.broker.delayed.pending,
        "messages": [_shown(one) for one in found],
    }
    if following is not None:
        shown["next"] = f"{ID_PREFIX}{following}"
    return shown


async def cancel(api: Api, who: Principal, name: str) -> None:
    await api.broker.delayed.cancel(who, number_of(name))


def number_of(name: str) -> int:
    digits = name.removeprefix(ID_PREFIX)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_ID_DIGITS):
        text = f"message not found: {name[:MAX_SHOWN]}"
        raise BrokerError(Code.UNKNOWN_DELAYED_MESSAGE, text)
    return int(digits)


def _shown(one: DelayedMessage) -> Json:
    return {
        "id": f"{ID_PREFIX}{one.number}",
        "topic": one.topic,
        "due_us": one.due_us,
        "value": one.value,
    }
