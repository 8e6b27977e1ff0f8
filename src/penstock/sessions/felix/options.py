"""What can be chosen about Felix: dialect, events, limits. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.broker.delivery.fanout import Policy
from penstock.wire.felix.frames import MAX_PAYLOAD_BYTES

Dialect = Literal["auto", "doc", "native"]
EventEncoding = Literal["json", "binary", "auto"]

# The scope of cache requests that name none. No scope of three names looks like it.
DEFAULT_SCOPE: Final = "cache"


@dataclass(frozen=True, slots=True)
class FelixOptions:
    max_frame_bytes: int = MAX_PAYLOAD_BYTES
    dialect: Dialect = "auto"
    # A stream is made by its first publish or subscription, a cache by its first request.
    auto_create: bool = False
    # What happens to slow subscribers, by stream, and of all others.
    policies: Mapping[str, Policy] = field(default_factory=dict)
    policy: Policy = "block"
    queue_events: int = 1_024
    event_encoding: EventEncoding = "json"
    # Events of one frame: the first of these ends it.
    batch_events: int = 64
    batch_bytes: int = 262_144
    batch_delay_us: int = 250
    # 1: an event for each frame, which is binary where these two allow it.
    fanout_batch_size: int = 64
    single_binary: bool = False
    single_binary_min_bytes: int = 512
    # Of one connection; quinn allows a peer as many streams.
    max_subscriptions: int = 1_024
