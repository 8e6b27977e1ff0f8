"""Append tokens: callbacks, waiting threads, awaiting tasks, errors, callers that fail."""

import asyncio
import threading

import pytest
from kit.limits import HANG_S

from penstock.log.engine import Pending
from penstock.log.errors import LogClosed
from penstock.log.partitions.tokens import AppendToken


def done_token(offset: int = 7) -> AppendToken:
    token = AppendToken(3)
    token.base_offset = offset
    token.complete()
    return token


def test_callbacks_run_once_in_order() -> None:
    token = AppendToken(3)
    heard: list[str] = []
    token.on_done(lambda _: heard.append("first"))
    token.on_done(lambda _: heard.append("second"))
    assert heard == []
    token.complete()
    token.complete()
    assert heard == ["first", "second"]


def test_a_late_callback_runs_at_once() -> None:
    heard: list[int] = []
    done_token(9).on_done(lambda token: heard.append(token.base_offset))
    assert heard == [9]


def test_a_callback_that_fails_does_not_keep_the_others_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = AppendToken(1)
    heard: list[bool] = []
    token.on_done(lambda done: print(1 // (done.count - 1)))
    token.on_done(lambda done: heard.append(done.done))
    token.complete()
    assert heard == [True]
    assert "a callback of an append failed" in caplog.text


def test_a_thread_waits_for_the_result() -> None:
    token = AppendToken(1)
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(token.result(HANG_S)))
    thread.start()
    token.base_offset = 5
    token.complete()
    thread.join(HANG_S)
    assert results == [5]
    assert token.result() == 5


def test_waiting_ends_with_a_timeout() -> None:
    with pytest.raises(TimeoutError, match="not durable after 0 s"):
        AppendToken(1).result(0)


def test_the_error_of_the_append_is_raised() -> None:
    token = AppendToken(1)
    token.error = LogClosed()
    token.complete()
    with pytest.raises(LogClosed):
        token.result()

    async def wait() -> None:
        with pytest.raises(LogClosed):
            await token

    asyncio.run(wait())


def test_tasks_await_a_token_that_another_thread_completes() -> None:
    token = AppendToken(1)

    async def wait() -> int:
        return await token

    async def main() -> list[int]:
        tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        token.base_offset = 4
        threading.Thread(target=token.complete).start()
        return [*await asyncio.gather(*tasks), await token]

    assert asyncio.run(main()) == [4, 4, 4, 4]


def test_a_cancelled_waiter_does_no_harm() -> None:
    token = AppendToken(1)

    async def wait() -> int:
        return await token

    async def main() -> None:
        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        token.complete()

    asyncio.run(main())
    assert token.done


def test_a_loop_that_is_gone_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    token = AppendToken(1)

    async def wait() -> int:
        return await token

    async def main() -> None:
        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(main())
    token.complete()
    assert token.done and caplog.text == ""


def test_a_read_calls_back_once_and_keeps_its_value() -> None:
    token: Pending[str] = Pending()
    heard: list[str] = []
    token.on_done(lambda done: heard.append(done.result()))
    token.settle("read", None)
    token.on_done(lambda done: heard.append("late " + done.result()))
    assert heard == ["read", "late read"]


def test_a_read_can_be_waited_for() -> None:
    token: Pending[str] = Pending()
    with pytest.raises(TimeoutError, match="not done after 0 s"):
        token.result(0)
    threading.Thread(target=lambda: token.settle("read", None)).start()
    assert token.result(HANG_S) == "read"


def test_a_read_raises_its_error() -> None:
    token: Pending[str] = Pending()
    token.settle(None, LogClosed())
    with pytest.raises(LogClosed):
        token.result()
