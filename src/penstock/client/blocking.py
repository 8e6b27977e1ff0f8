"""A blocking wrapper for any async client: the same methods, without await.

Runs the client on an event loop in a thread of its own. Every method blocks until it is done, every
async iterator is a plain one, and what a method returns is wrapped too if one can iterate over it
asynchronously (a subscription) or use it with `async with` (a producer). Adds no time limits: the client
has them.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from penstock.client.errors import ClientClosed

Result = TypeVar("Result")


class LoopThread:
    """An event loop that runs in a daemon thread until `stop`."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="penstock-client", daemon=True
        )
        self._stopped = False
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The coroutine's result. Ctrl-C cancels it."""
        if self._stopped:
            work.close()
            raise ClientClosed()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Wrapped:
    """The blocking view of one object that lives on the loop."""

    def __init__(self, target: Any, thread: LoopThread | None) -> None:
        self._target = target
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._target, name)
        if not inspect.ismethod(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            return self._run(self._call(value, arguments, options))

        call.__name__, call.__doc__ = name, value.__doc__
        return call

    def __iter__(self) -> Iterator[Any]:
        return self._items(aiter(self._target))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._thread is None:
            work.close()
            raise ClientClosed()
        return self._thread.run(work)

    async def _call(
        self, method: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """On the loop's thread, also for plain methods: the client is not made for two threads."""
        result = method(*arguments, **options)
        if inspect.isawaitable(result):
            result = await result
        if inspect.isasyncgen(result):
            return self._items(result)
        if hasattr(result, "__aenter__"):
            return WrappedContext(result, self._thread)
        return Wrapped(result, self._thread) if hasattr(result, "__aiter__") else result

    def _items(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    item = self._run(_following(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if inspect.isasyncgen(items):
                # If the client was closed first, the iterator has ended already.
                with suppress(ClientClosed):
                    self._run(_closed(items))


class WrappedContext(Wrapped):
    """What a method gave that is used with `async with`, such as a producer: here it is `with`."""

    def __enter__(self) -> Self:
        self._run(self._target.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._target.__aexit__(kind, error, traceback))


class BlockingFace(Wrapped):
    """A client behind `with`: opens it on a thread of its own, ends both at the end."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, None)

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        try:
            self._run(self._target.__aenter__())
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._run(self._target.__aexit__(kind, error, traceback))
        finally:
            self._end_thread()

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


async def _following(items: AsyncIterator[Any]) -> Any:
    return await anext(items)


async def _closed(items: Any) -> None:
    await items.aclose()
