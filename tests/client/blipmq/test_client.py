"""The BlipMQ client against a server that is not ours, over a real socket."""

import asyncio
from collections.abc import Callable

import pytest
from client.peer import BlipMQPeer, Peer, Waits, answers, closes, run, silent
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.blipmq import FIRST_ID, BlipMQClient, connect_blipmq
from penstock.client.blipmq.subscription import MIN_POLLS, Batch
from penstock.client.errors import (
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NotAuthorized,
    ProtocolViolation,
    PublishRefused,
    Refused,
    RequestTimedOut,
)
from penstock.wire.blipmq import frames as wire

LOGGED_IN = wire.encode_ack(FIRST_ID, 0) + wire.encode_ack(FIRST_ID + 1, 0)


def client_of(peer: Peer, key: str = "secret", waits: Waits | None = None) -> BlipMQClient:
    return BlipMQClient(peer.address, key=key, settings=(waits or Waits()).settings())


@pytest.mark.parametrize("byte_by_byte", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_publish_and_consume(qos: int, byte_by_byte: bool) -> None:
    async def main() -> None:
        blipmq = BlipMQPeer(byte_by_byte=byte_by_byte)
        values = [b"%d" % number for number in range(100)] + [b""]
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            subscription = await client.subscribe("demo", qos)
            ids = await client.publish_many("demo", values, qos)
            await client.flush()
            assert len(ids) == len(values)
            got: list[bytes] = []
            async for message in subscription:
                got.append(message.value)
                assert (message.topic, message.qos) == ("demo", qos)
                assert message.tag == (len(got) if qos else None)
                if len(got) == len(values):
                    break
            assert got == values
        assert blipmq.published == [("demo", qos, value) for value in values]

    run(main())


def test_a_batch_is_acknowledged_when_the_next_is_asked_for() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            subscription = await client.subscribe("demo")
            await client.publish_many("demo", [b"x"] * (MIN_POLLS + 1))
            sizes: list[int] = []
            async for batch in subscription.batches():
                sizes.append(len(batch))
                await client.ping()
                acked = [(subscription.subscription_id, tag + 1) for tag in range(sum(sizes[:-1]))]
                assert blipmq.acked == acked
                if sum(sizes) == MIN_POLLS + 1:
                    break
            assert sizes == [MIN_POLLS, 1]

    run(main())


def test_a_limited_number_of_messages_is_asked_for_and_settled() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            subscription = await client.subscribe("demo")
            await client.publish_many("demo", [b"x"] * 50)
            assert sum([len(batch) async for batch in subscription.batches(limit=20)]) == 20
            await client.ping()
            assert len(blipmq.acked) == 20
            assert len(blipmq.queues[subscription.subscription_id]) == 30

    run(main())


def test_manual_acknowledgement_of_messages_and_batches() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            subscription = await client.subscribe("demo", auto_ack=False)
            await client.publish_many("demo", [b"a", b"b", b"c"])
            (batch,) = await subscription.poll(2)
            first, second = batch
            subscription.ack(second)
            subscription.ack(first)
            (rest,) = await subscription.poll(2)
            subscription.ack(rest)
            assert await subscription.poll(2) == []
            await client.ping()
            number = subscription.subscription_id
            assert blipmq.acked == [(number, 2), (number, 1), (number, 3)]

    run(main())


def test_two_subscriptions_of_one_topic_keep_their_deliveries_apart() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            one = await client.subscribe("demo")
            await client.publish("demo", b"early")
            two = await client.subscribe("demo")
            await client.publish("demo", b"late")
            both = await asyncio.gather(one.poll(8), two.poll(8))
            assert [[batch.values for batch in found] for found in both] == [
                [[b"early", b"late"]],
                [[b"late"]],
            ]

    run(main())


def test_waiting_gets_longer_while_nothing_comes() -> None:
    async def main() -> None:
        blipmq, waits = BlipMQPeer(), Waits()
        async with Peer(blipmq.script) as peer, client_of(peer, waits=waits) as client:
            subscription = await client.subscribe("demo")
            consumer = asyncio.ensure_future(anext(subscription.batches()))
            while len(waits.delays_s) < 8:
                await client.ping()
            await client.publish("demo", b"at last")
            assert (await consumer).values == [b"at last"]
        assert waits.delays_s[:8] == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]

    run(main())


def test_refusals_are_raised_by_flush_with_their_ids() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        blipmq.refused[b"bad"] = wire.Nack(507, "disk says no")
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            ids = await client.publish_many("demo", [b"good", b"bad", b"bad"])
            with pytest.raises(PublishRefused) as caught:
                await client.flush()
            assert [refusal.message_id for refusal in caught.value.refusals] == [ids[1], ids[2]]
            assert {(one.code, one.text) for one in caught.value.refusals} == {
                (507, "disk says no")
            }
            assert caught.value.count == 2
            assert str(caught.value) == (
                "2 messages were refused, the first with: disk says no (code 507)"
            )
            await client.flush()
        assert [value for _, _, value in blipmq.published] == [b"good"]

    run(main())


def test_leaving_the_block_flushes() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        blipmq.refused[b"bad"] = wire.Nack(500, "no")
        async with Peer(blipmq.script) as peer:
            with pytest.raises(PublishRefused):
                async with client_of(peer) as client:
                    await client.publish("demo", b"bad", 1)

    run(main())


def test_a_late_ack_is_counted_and_refuses_no_message() -> None:
    """The NACK for an ACK bears the delivery tag, not an id of ours."""

    async def main() -> None:
        blipmq = BlipMQPeer()
        blipmq.refuses_acks = True
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            subscription = await client.subscribe("demo")
            await client.publish("demo", b"x")
            (batch,) = await subscription.poll(1)
            subscription.ack(batch)
            await client.flush()
            assert client.refused_acks == 1

    run(main())


def test_a_wrong_key_is_not_authorized() -> None:
    async def main() -> None:
        async with Peer(BlipMQPeer().script) as peer:
            with pytest.raises(NotAuthorized) as caught:
                async with client_of(peer, key="wrong"):
                    raise AssertionError("must not open")
        assert (caught.value.code, caught.value.text) == (401, "go away")
        assert caught.value.exit_code == 5

    run(main())


def test_another_version_is_refused_with_its_code() -> None:
    async def main() -> None:
        script = answers(
            wire.encode_nack(FIRST_ID, wire.UNSUPPORTED_VERSION),
            wire.encode_nack(FIRST_ID + 1, wire.HELLO_NOT_PERFORMED),
        )
        async with Peer(script) as peer:
            with pytest.raises(Refused) as caught:
                await client_of(peer).__aenter__()
        assert caught.value.code == 426

    run(main())


def test_a_refused_subscription_carries_the_code() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        blipmq.refused[b"private"] = wire.Nack(403, "not yours")
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            with pytest.raises(NotAuthorized, match="SUBSCRIBE private was refused: not yours"):
                await client.subscribe("private")

    run(main())


def test_a_refused_poll_is_raised_to_the_consumer() -> None:
    async def main() -> None:
        granted = wire.encode_ack(FIRST_ID + 2, 9)
        poll_refused = wire.encode_nack(FIRST_ID + 3, wire.UNAUTHENTICATED)
        ping_refused = wire.encode_nack(FIRST_ID + 4, wire.UNAUTHENTICATED)

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(wire.encode_hello(1) + wire.encode_auth(1, "secret")))
            writer.write(LOGGED_IN)
            await reader.readexactly(len(wire.encode_subscribe(1, b"demo", 1)))
            writer.write(granted)
            await reader.readexactly(len(wire.encode_poll(1, 9) + wire.encode_ping(1)))
            writer.write(poll_refused + ping_refused)
            await silent(reader, writer)

        async with Peer(script) as peer, client_of(peer) as client:
            subscription = await client.subscribe("demo")
            with pytest.raises(NotAuthorized):
                await subscription.poll(1)

    run(main())


def test_nobody_listens() -> None:
    async def main() -> None:
        async with Peer(silent) as peer:
            address = peer.address
        with pytest.raises(ConnectFailed) as caught:
            await BlipMQClient(address, settings=Waits().settings()).__aenter__()
        assert str(caught.value) == (
            f"cannot connect to {address}: Connection refused;"
            " nothing listens there, is penstock serve running?"
        )
        assert caught.value.exit_code == 4

    run(main())


def test_a_silent_server_is_given_up() -> None:
    async def main() -> None:
        async with Peer(silent) as peer:
            client = BlipMQClient(peer.address, settings=Waits().settings(timeout_s=0.05))
            with pytest.raises(ConnectFailed, match=r"no answer within 0\.05 s"):
                await client.__aenter__()

    run(main())


def test_a_request_without_an_answer_times_out() -> None:
    async def main() -> None:
        settings = Waits().settings(attempts=0, timeout_s=1.0)
        async with Peer(answers(LOGGED_IN)) as peer:
            client = BlipMQClient(peer.address, settings=settings)
            await client.__aenter__()
            with pytest.raises(RequestTimedOut):
                await client.flush()
            with pytest.raises(ConnectionLost):
                await client.ping()
            await client.close()

    run(main())


def test_a_server_that_closes_during_the_login() -> None:
    async def main() -> None:
        async with Peer(closes(wire.encode_ack(FIRST_ID, 0))) as peer:
            with pytest.raises(ConnectFailed, match="closed it before the login was done"):
                await client_of(peer).__aenter__()

    run(main())


def test_use_outside_of_the_block() -> None:
    async def main() -> None:
        client = BlipMQClient("127.0.0.1:1")
        with pytest.raises(ClientClosed):
            await client.publish("demo", b"x")

    run(main())


# ---- reconnect ----


def test_a_lost_connection_is_made_again_with_new_subscriptions() -> None:
    async def main() -> None:
        blipmq, waits = BlipMQPeer(), Waits(random=0.5)
        blipmq.cut_at.add(b"cut")
        async with Peer(blipmq.script) as peer, client_of(peer, waits=waits) as client:
            subscription = await client.subscribe("demo", auto_ack=False)
            await client.publish("demo", b"before")
            (old,) = await subscription.poll(4)
            old_id = subscription.subscription_id
            await client.publish("demo", b"cut")
            with pytest.raises(ConnectionLost) as caught:
                await client.flush()
            assert caught.value.unconfirmed == 2
            await client.publish("demo", b"after")
            (new,) = await subscription.poll(4)
            assert new.values == [b"after"]
            assert (old.generation, new.generation, client.reconnects) == (1, 2, 1)
            assert subscription.subscription_id != old_id
            # The old tags mean nothing on the new subscription.
            subscription.ack(old)
            subscription.ack(new)
            await client.flush()
            assert blipmq.acked == [(subscription.subscription_id, 1)]
        assert waits.delays_s == [0.1 * 0.75]

    run(main())


def test_attempts_wait_longer_each_time_and_end() -> None:
    async def main() -> None:
        waits = Waits(random=0.0)

        async def lets_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            writer.write(LOGGED_IN)
            await reader.readuntil(b"last")

        async with Peer(lets_go, closes()) as peer:
            client = BlipMQClient(peer.address, settings=waits.settings(attempts=9))
            await client.__aenter__()
            await client.publish("demo", b"last")
            with pytest.raises(ConnectionLost):
                await client.flush()
            with pytest.raises(ConnectFailed):
                await client.ping()
            assert waits.delays_s == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
            assert peer.connections == 10
            with pytest.raises(ConnectFailed):
                await client.publish("demo", b"too late")
            await client.close()

    run(main())


def test_a_key_that_was_revoked_meanwhile_ends_the_attempts() -> None:
    async def main() -> None:
        blipmq, waits = BlipMQPeer(), Waits()
        blipmq.cut_at.add(b"cut")
        async with Peer(blipmq.script) as peer:
            client = client_of(peer, waits=waits)
            await client.__aenter__()
            blipmq.key = "changed"
            await client.publish("demo", b"cut")
            with pytest.raises(ConnectionLost):
                await client.flush()
            with pytest.raises(NotAuthorized):
                await client.ping()
            assert len(waits.delays_s) == 1
            await client.close()

    run(main())


def test_a_consumer_goes_on_over_a_reconnect() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        blipmq.cut_at.add(b"cut")
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            subscription = await client.subscribe("demo")
            batches = subscription.batches()
            await client.publish("demo", b"one")
            assert (await anext(batches)).values == [b"one"]
            following: asyncio.Future[Batch] = asyncio.ensure_future(anext(batches))
            async with client_of(peer) as other:
                await client.publish("demo", b"cut")
                while client.reconnects == 0:
                    await other.ping()
                await other.publish("demo", b"two")
                await other.flush()
                batch = await following
            assert (batch.values, batch.generation) == ([b"two"], 2)
            # What went down with the first connection is not forgotten.
            with pytest.raises(ConnectionLost):
                await client.flush()

    run(main())


def test_a_subscription_that_is_refused_after_a_reconnect_says_so() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        blipmq.cut_at.add(b"cut")
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            subscription = await client.subscribe("demo")
            blipmq.refused[b"demo"] = wire.Nack(401, "no more")
            await client.publish("demo", b"cut")
            with pytest.raises(ConnectionLost):
                await client.flush()
            await client.ping()
            with pytest.raises(NotAuthorized, match="after the reconnect"):
                await subscription.poll(1)

    run(main())


# ---- bad peers ----


@pytest.mark.parametrize(
    "frames",
    [
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x09\x0a" + bytes(8),
        wire.encode_hello(1),
        wire.encode_publish(5, b"demo", 0, b"nobody asked"),
        b"\x00\x00\x00\x0a\x05" + bytes(9),
        b"\x00\x00\x00\x0a\x06" + bytes(9),
    ],
)
def test_bytes_that_break_the_protocol_end_the_connection(frames: bytes) -> None:
    async def main() -> None:
        async with Peer(answers(LOGGED_IN + frames)) as peer:
            client = client_of(peer)
            with pytest.raises((ProtocolViolation, ConnectFailed)):
                await client.__aenter__()
                await client.ping()
            await client.close()

    run(main())


@given(st.binary(max_size=64), st.booleans())
@settings(max_examples=60)
def test_any_bytes_parse_or_raise_a_client_error(data: bytes, logged_in: bool) -> None:
    async def main() -> None:
        async with Peer(closes((LOGGED_IN if logged_in else b"") + data)) as peer:
            client = BlipMQClient(peer.address, settings=Waits().settings(attempts=0))
            try:
                await client.__aenter__()
                await client.ping()
            except ClientError:
                return
            finally:
                await client.close()

    run(main())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: BlipMQClient("nonsense:port"), "is no server address"),
        (lambda: BlipMQClient("host:0"), "is no server address"),
        (lambda: BlipMQClient("host", key="x" * 65_536), "API key of 65536 bytes"),
    ],
)
def test_wrong_arguments(call: Callable[[], BlipMQClient], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize(
    ("topic", "value", "qos"), [("", b"", 1), ("t", b"", 2), ("x" * 65_536, b"", 0)]
)
def test_messages_that_cannot_be_sent(topic: str, value: bytes, qos: int) -> None:
    async def main() -> None:
        async with Peer(BlipMQPeer().script) as peer, client_of(peer) as client:
            with pytest.raises(ValueError):
                await client.publish(topic, value, qos)
            await client.flush()

    run(main())


def test_a_message_larger_than_a_frame() -> None:
    async def main() -> None:
        async with Peer(BlipMQPeer().script) as peer, client_of(peer) as client:
            with pytest.raises(ValueError, match="a frame has room for"):
                await client.publish("t", bytes(wire.message_room(b"t") + 1))
            assert await client.publish_many("t", []) == range(0)

    run(main())


def test_a_large_message_arrives_whole() -> None:
    async def main() -> None:
        blipmq = BlipMQPeer()
        value = bytes(range(256)) * 16_000
        async with Peer(blipmq.script) as peer, client_of(peer) as client:
            subscription = await client.subscribe("big")
            await client.publish("big", value)
            (batch,) = await subscription.poll(1)
            assert batch.values == [value]

    run(main())


def test_the_blocking_face() -> None:
    """The peer runs on its own loop in this thread's background: the face has another."""
    from penstock.client.blocking import LoopThread

    blipmq = BlipMQPeer()
    thread = LoopThread()
    peer = Peer(blipmq.script)
    thread.run(peer.__aenter__())
    try:
        with connect_blipmq(peer.address, key="secret") as client:
            subscription = client.subscribe("demo")
            assert client.publish_many("demo", [b"a", b"b"], 1) == range(FIRST_ID + 3, FIRST_ID + 5)
            client.flush()
            got = []
            for message in subscription:
                got.append(message.value)
                if len(got) == 2:
                    break
            assert got == [b"a", b"b"]
            assert subscription.topic == "demo"
            assert client.reconnects == 0
        with pytest.raises(ClientClosed):
            client.ping()
        with pytest.raises(NotAuthorized), connect_blipmq(peer.address, key="wrong"):
            raise AssertionError("must not open")
    finally:
        thread.run(peer.__aexit__(None, None, None))
        thread.stop()
