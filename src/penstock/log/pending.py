"""What the engine promises for later: a read, or a change of the metadata.

An append has a token of its own (partitions/tokens.py), with the same words: `done`, `error`, `on_done`,
`result`, and it can be awaited.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from mypy_extensions import mypyc_attr

T_co = TypeVar("T_co", covariant=True)

# Guards the step from "not done" to "done" against a callback being added meanwhile. One lock for all: it
# is held for nanoseconds, and what is pending stays small.
_lock = threading.Lock()

logger = logging.getLogger(__name__)


@mypyc_attr(allow_interpreted_subclasses=True)
class Pending(Generic[T_co]):
    """Not done, then for good either a value or an error. Its maker settles it, once."""

    __slots__ = ("_callbacks", "done", "error", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: T_co | None = None
        self.error: BaseException | None = None
        # And the events of the threads that wait.
        self._callbacks: list[Callable[[Any], object] | threading.Event] | None = None

    def on_done(self, callback: "Callable[[Pending[T_co]], object]") -> None:
        """Calls back once, in the thread that settles it; at once when it is done already."""
        if self.done or not self._add(callback):
            self._call_late(callback)

    def _add(self, waiting: "Callable[[Pending[T_co]], object] | threading.Event") -> bool:
        """False where it is done already."""
        with _lock:
            if not self.done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(waiting)
            return not self.done

    def _call_late(self, callback: "Callable[[Pending[T_co]], object]") -> None:
        callback(self)

    def settle(self, value: T_co | None, error: BaseException | None) -> None:
        for callback in self.mark_done(value, error):
            try:
                callback(self)
            except Exception:  # the defect of one caller must not keep the others waiting
                logger.exception("a callback of the engine failed")

    def mark_done(
        self,
        value: T_co | None,
        error: BaseException | None,
    ) -> "list[Callable[[Any], object]]":
        """Settles it, and gives the callbacks that are due: for who calls them elsewhere."""
        with _lock:
            self.value = value
            self.error = error
            self.done = True
            waiting, self._callbacks = self._callbacks or [], None
        # A thread that waits goes on even if nobody runs the callbacks: the loop may be waiting for it.
        for one in waiting:
            if isinstance(one, threading.Event):
                one.set()
        return [one for one in waiting if not isinstance(one, threading.Event)]

    def result(self, timeout_s: float | None = None) -> T_co:
        """The value; blocks the calling thread. Raises the error, or TimeoutError: it may still happen.

        Not for the thread that settles it, unless it is done.
        """
        if not self.done:
            event = threading.Event()
            if self._add(event) and not event.wait(timeout_s):
                raise TimeoutError(f"not done after {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # set whenever there is no error

    def __await__(self) -> Generator[Any, None, T_co]:
        """Behind the callbacks that are there already: what they note is noted."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, future)

        self.on_done(wake)
        yield from future
        return self.result()


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
