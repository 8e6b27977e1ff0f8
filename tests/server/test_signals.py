"""Signals that stop the server: which of them are one request, and which one hurries it."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from kit.echo_server import run

from penstock.server.signals import ONE_REQUEST_S, STOP_SIGNALS, watch_stop_signals


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("first", STOP_SIGNALS)
def test_repeats_are_the_same_request_and_a_later_signal_hurries_it(
    loop: str, first: signal.Signals
) -> None:
    now_s = 100.0
    hurried: list[int] = []

    async def body() -> None:
        nonlocal now_s
        stop = asyncio.Event()
        watch_stop_signals(stop, lambda: now_s, hurried.append)
        os.kill(os.getpid(), first)
        await stop.wait()
        for number in (*STOP_SIGNALS, *STOP_SIGNALS):
            os.kill(os.getpid(), number)
        assert hurried == []
        now_s += ONE_REQUEST_S
        os.kill(os.getpid(), signal.SIGTERM)
        assert hurried == [signal.SIGTERM]

    run(loop, body)
