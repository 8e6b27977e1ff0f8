"""Felix's events: the binary batch of the table, JSON events, and what subscriptions share."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.felix.batches import (
    EventFrames,
    encode_publish_batch,
    encode_shared_events,
    event_batch_head,
)

NAMES = b'"tenant_id":"t","namespace":"n","stream":"s"'


def test_the_example_of_row_70() -> None:
    shared = encode_shared_events([b"alpha", b"beta"])
    assert (event_batch_head(1, len(shared)) + shared).hex() == (
        "464c5831000100020000001d00000000000000010000000200000005616c7068610000000462657461"
    )


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_subscription_id_is_unsigned(number: int) -> None:
    assert event_batch_head(number, 0)[12:] == number.to_bytes(8, "big")


def test_one_event_goes_alone_and_more_as_a_batch() -> None:
    frames = EventFrames(NAMES)
    assert frames.encode([b"hi"])[12:] == (
        b'{"type":"event","tenant_id":"t","namespace":"n","stream":"s","payload":"aGk="}'
    )
    assert frames.encode([b"hi", b""])[12:] == (
        b'{"type":"event_batch","tenant_id":"t","namespace":"n","stream":"s","payloads":["aGk=",""]}'
    )
    with pytest.raises(ValueError, match="at least one event"):
        frames.encode([])


@given(st.lists(st.binary(), min_size=1))
def test_events_are_what_was_published(values: list[bytes]) -> None:
    frame = EventFrames(NAMES).encode(values)
    assert int.from_bytes(frame[8:12], "big") == len(frame) - 12
    found = json.loads(frame[12:])
    payloads = [found["payload"]] if len(values) == 1 else found["payloads"]
    assert [base64.b64decode(payload) for payload in payloads] == values


def test_a_name_has_a_length_of_16_bits() -> None:
    with pytest.raises(ValueError, match="65535"):
        encode_publish_batch("x" * 65_536, "", "", [])
