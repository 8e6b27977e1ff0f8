"""Routes: batches, budgets, outages and the backoff after them, on a broker in memory."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kit.limits import HANG_S
from server.connectors.scripted import TABLE, Broker, ScriptedConnector

from penstock.broker.errors import BrokerError, Code
from penstock.broker.outside import ReaderTerms
from penstock.server.connectors import reading
from penstock.server.connectors import route as route_module
from penstock.server.connectors.route import Route

TERMS = ReaderTerms(pull=True, max_in_flight=10)


def run(test: Callable[[Route, Broker], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        broker = Broker()
        route = Route("r", TABLE, ScriptedConnector, lambda: ScriptedConnector(broker))
        try:
            async with asyncio.timeout(HANG_S):
                await test(route, broker)
        finally:
            await route.close()

    asyncio.run(whole())


async def code_of(pending: Any) -> Code:
    with pytest.raises(BrokerError) as caught:
        await pending
    return caught.value.code


def test_what_comes_meanwhile_is_the_next_batch() -> None:
    async def test(route: Route, broker: Broker) -> None:
        assert broker.opened == 0  # until somebody writes
        broker.answers.clear()
        first = route.write([b"1"], None, 1)
        while not broker.batches:
            await asyncio.sleep(0)
        others = [route.write([b"%d" % number], None, 1) for number in range(2, 6)]
        assert route.counters.pending_bytes == 5
        broker.answers.set()
        assert [await one for one in (first, *others)] == [{}] * 5
        assert broker.batches == [[b"1"], [b"2", b"3", b"4", b"5"]]
        assert (route.counters.written, route.counters.pending_bytes, broker.opened) == (5, 0, 1)

    run(test)


def test_each_message_has_its_own_outcome() -> None:
    async def test(route: Route, broker: Broker) -> None:
        pending = [route.write([b"a", b"bad"], None, 2), route.write([b"bad", b"b"], None, 2)]
        assert [await one for one in pending] == [{1: "bad"}, {0: "bad"}]
        assert (route.counters.written, route.counters.failed) == (2, 2)
        assert route.counters.up is True

    run(test)


def test_an_outage_fails_what_waits_and_the_next_write_connects_again() -> None:
    async def test(route: Route, broker: Broker) -> None:
        broker.answers.clear()
        broker.fails = ConnectionResetError("gone")
        first = route.write([b"1"], None, 1)
        while not broker.batches:
            await asyncio.sleep(0)
        second = route.write([b"2"], None, 1)
        broker.answers.set()
        assert await code_of(first) is Code.OUTSIDE_UNAVAILABLE
        assert await code_of(second) is Code.OUTSIDE_UNAVAILABLE
        assert len(broker.batches) == 1  # the second one was not tried
        assert (route.counters.outages, route.counters.up) == (1, False)
        broker.fails = None
        assert await route.write([b"3"], None, 1) == {}
        assert (broker.opened, broker.closed) == (2, 1)
        assert (route.counters.failed, route.counters.up) == (2, True)
        assert route.counters.pending_bytes == 0

    run(test)


def test_errors_come_at_once_between_two_attempts() -> None:
    async def test(route: Route, broker: Broker) -> None:
        broker.refuses_connections = OSError("refused")
        for _ in range(3):
            assert await code_of(route.write([b"x"], None, 1)) is Code.OUTSIDE_UNAVAILABLE
        assert broker.opened == 1
        assert route.counters.outages == 1

    run(test)


def test_a_refusal_is_no_outage() -> None:
    async def test(route: Route, broker: Broker) -> None:
        broker.fails = ValueError("no such stream")
        with pytest.raises(BrokerError, match="nats: no such stream") as caught:
            await route.write([b"x"], None, 1)
        assert caught.value.code is Code.OUTSIDE_REFUSED
        assert (route.counters.outages, broker.closed) == (0, 0)

    run(test)


def test_a_defect_of_a_library_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def test(route: Route, broker: Broker) -> None:
        broker.fails = ZeroDivisionError("a secret")
        with pytest.raises(BrokerError, match=r"^nats: internal error$"):
            await route.write([b"x"], None, 1)

    run(test)
    assert "route r: an error that is not expected" in caplog.text


def test_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(route: Route, broker: Broker) -> None:
        monkeypatch.setattr(route_module, "MAX_PENDING_BYTES", 100)
        woken = asyncio.Event()
        broker.answers.clear()
        pending = [route.write([b"x"], None, 60) for _ in range(2)]
        assert not route.has_room()
        route.when_room(woken.set)
        broker.answers.set()
        await woken.wait()
        assert [await one for one in pending] == [{}, {}]
        assert route.has_room()

    run(test)


def test_a_stop_answers_everybody() -> None:
    async def test(route: Route, broker: Broker) -> None:
        broker.answers.clear()
        first = route.write([b"1"], None, 1)
        while not broker.batches:
            await asyncio.sleep(0)
        second = route.write([b"2"], None, 1)
        reader = route.subscribe(TERMS)
        await reader.opened
        taking = reader.take(1, 1, 1000.0)
        await asyncio.sleep(0)
        await route.close()
        for pending in (first, second, taking):
            assert isinstance(pending.error, BrokerError)
        assert route.counters.readers == 0
        # And nothing is opened after it.
        assert await code_of(route.write([b"3"], None, 1)) is Code.OUTSIDE_UNAVAILABLE
        assert broker.opened == 1

    run(test)


def test_readers() -> None:
    async def test(route: Route, broker: Broker) -> None:
        reader = route.subscribe(TERMS)
        await reader.opened
        broker.waiting.put_nowait(b"one")
        found = await reader.take(5, 5, 1.0)
        assert found.values == [b"one"] and reader.in_flight == 1
        assert await reader.settle([*found.ids, b"other"], good=True) == {1: "msg not found"}
        assert (reader.in_flight, route.counters.read, route.counters.settled) == (0, 1, 1)
        # After an outage the next one subscribes anew.
        broker.fails = OSError("gone")
        assert await code_of(reader.take(1, 1, 1.0)) is Code.OUTSIDE_UNAVAILABLE
        broker.fails = None
        broker.waiting.put_nowait(b"two")
        assert (await reader.take(1, 1, 1.0)).values == [b"two"]
        reader.close()
        assert route.counters.readers == 0

    run(test)


def test_a_reader_that_goes_is_closed_behind_its_acknowledgements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The broker is slow, not gone: it is slower than a goodbye may be.
    monkeypatch.setattr(reading, "CLOSE_S", 0.0)

    async def test(route: Route, broker: Broker) -> None:
        reader = route.subscribe(TERMS)
        await reader.opened
        broker.waiting.put_nowait(b"one")
        found = await reader.take(5, 5, 1.0)
        broker.acks.clear()
        settled = reader.settle(found.ids, good=True)
        reader.close()
        for _ in range(10):
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        assert broker.closed == 0
        broker.acks.set()
        assert await settled == {}

    run(test)


def test_readers_are_limited() -> None:
    async def test(route: Route, broker: Broker) -> None:
        route.most_readers = 1
        route.subscribe(TERMS)
        with pytest.raises(BrokerError, match="1 readers at most"):
            route.subscribe(TERMS)

    run(test)
