"""The table of rights at the door of BlipMQ: every frame, with no key, a wrong one, and each role."""

import pytest
from conformance.blipmq.peer import (
    ACK,
    AUTH,
    HELLO,
    NACK,
    PING,
    POLL,
    PONG,
    PUBLISH,
    SUBSCRIBE,
    BlipMQPeer,
    ack,
    auth,
    frame,
    hello,
    message,
    nack,
    ping,
    poll,
    pong,
    subscribe,
    until_queued,
)
from conformance.rights.callers import CALLERS, KNOWN, OTHER, OWN, Caller, Outcome, Walk, outcome

from penstock.sessions.blipmq.session import OPERATIONS

CID = 77
UNAUTHENTICATED = nack(CID, 401, "unauthenticated")
ADMIN = next(caller for caller in KNOWN if caller.role == "admin" and not caller.limited)


def test_every_frame_that_the_server_takes_is_in_the_table(walk: Walk) -> None:
    """Found from outside: a frame of a type that it does not know ends the connection."""
    taken = set()
    for kind in range(256):
        with BlipMQPeer(walk.server.port()).login(walk.keys["reader"]) as peer:
            peer.send(frame(kind, CID) + ping(1))
            try:
                while peer.frame() != pong(1):
                    continue
            except (AssertionError, ConnectionError):
                continue
            taken.add(kind)
    assert taken == set(OPERATIONS)


def attempt(walk: Walk, caller: Caller, kind: int, topic: str) -> Outcome:
    """Whether a frame was carried out: by its answer, or by the silence that stands for it."""
    port = walk.server.port()
    with BlipMQPeer(port).login(walk.keys[ADMIN.name]) as owner, BlipMQPeer(port) as peer:
        subscription = owner.subscribe(topic)
        owner.send(message(3, topic, b"body"))
        until_queued(walk.server, subscription, 1)
        if kind == ACK:
            owner.poll(subscription)
        key = walk.key(caller)
        if kind != HELLO:
            peer.ask(hello(1), ack(1, 0))
        if kind not in (HELLO, AUTH) and key is not None:
            peer.send(auth(2, key))
            peer.frame()
        # The key of AUTH is right for all: everybody may log in.
        peer.send(
            {
                HELLO: hello(CID),
                AUTH: auth(CID, walk.keys["reader"]),
                PUBLISH: message(CID, topic, b"more"),
                SUBSCRIBE: subscribe(CID, topic),
                ACK: ack(1, subscription),  # tag 1
                NACK: nack(CID, 400, "no"),
                PING: ping(CID),
                PONG: pong(CID),
                POLL: poll(CID, subscription),
            }[kind]
        )
        peer.send(poll(CID + 1, 0))  # answered behind all that was answered before
        answers: list[bytes] = []
        while not answers or answers[-1][5:13] != (CID + 1).to_bytes(8, "big"):
            answers.append(peer.frame())
    refusals = [answer for answer in answers[:-1] if answer[4] == NACK]
    if refusals and b"unauthenticated" in refusals[0]:
        return "unauthenticated"
    if kind == POLL and len(answers) == 1:
        return "refused"  # silence, as for a subscription that does not exist
    return "refused" if refusals else "allowed"


@pytest.mark.row("blipmq-60", "blipmq-71")
@pytest.mark.parametrize("prefix", [OWN, OTHER])
@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
def test_every_frame_needs_the_right_of_the_table(walk: Walk, caller: Caller, prefix: str) -> None:
    for kind, operation in OPERATIONS.items():
        topic, _ = walk.fresh(prefix)
        found = attempt(walk, caller, kind, topic)
        assert found == outcome(caller, operation, topic), (kind, operation)


@pytest.mark.row("blipmq-44")
@pytest.mark.parametrize("caller", KNOWN, ids=lambda caller: caller.name)
def test_a_subscription_makes_a_topic_for_who_may_publish_to_it(walk: Walk, caller: Caller) -> None:
    name, _ = walk.fresh(OWN)
    topic = f"{name}.new"
    roles = {"admin", "user"}
    with BlipMQPeer(walk.server.port()).login(walk.keys[caller.name]) as peer:
        peer.send(subscribe(CID, topic))
        answer = peer.frame()
    assert (answer[4] == ACK) == (caller.role in roles)
    if caller.role == "reader":
        words = f"no topic named '{topic}', and reader may not create it"
        assert answer == nack(CID, 404, words)
    found = walk.server.call(lambda: walk.server.server.engine.topic(topic))
    assert (found is not None) == (caller.role in roles)
