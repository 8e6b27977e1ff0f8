"""Results that complete later: a change of the metadata, as its caller sees it."""

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """A result that completes later, once and finally with a value or an error."""

    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> BaseException | None: ...
    def result(self, timeout_s: float | None = None) -> T_co: ...
    def add_done_callback(self, callback: "Callable[[Pending[T_co]], object]") -> None: ...


class Promise(Generic[T]):
    """A Pending that its maker completes. Callbacks run in the thread that does so."""

    __slots__ = ("_callbacks", "_error", "_set", "_value")

    def __init__(self) -> None:
        self._set = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Pending[T]], object]] = []

    @property
    def done(self) -> bool:
        return self._set.is_set()

    @property
    def error(self) -> BaseException | None:
        return self._error

    def result(self, timeout_s: float | None = None) -> T:
        """Blocks the calling thread. Raises the error, or TimeoutError."""
        if not self._set.wait(timeout_s):
            raise TimeoutError(f"not done after {timeout_s} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set whenever there is no error

    def add_done_callback(self, callback: "Callable[[Pending[T]], object]") -> None:
        """Calls back once; at once when it is done. Called where `complete` is called."""
        if self._set.is_set():
            callback(self)
        else:
            self._callbacks.append(callback)

    def complete(self, value: T | None, error: BaseException | None) -> None:
        self._value, self._error = value, error
        self._set.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
