"""An engine as a server has it: called in one thread, where its completions come back to.

`OnLoop` makes every call there and hands back what it gave, so that a test of the engine page is written
in plain calls, for whichever engine.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Self, cast

from kit.limits import HANG_S
from penstock.kafka.clients import KafkaOptions
from penstock.kafka.engine import KafkaEngine, KafkaEngineOptions
from penstock.log.engine import Engine


class Turns:
    """The thread that stands for the event loop."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)
        self._thread.start()

    def post(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """There, and gives what it gave."""
        if threading.current_thread() is self._thread:
            return function(*arguments, **named)
        found: list[Any] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                found.append(function(*arguments, **named))
            except BaseException as error:  # for the one who called
                errors.append(error)
            done.set()

        self.post(run)
        assert done.wait(HANG_S), f"{function} hangs"
        if errors:
            raise errors[0]
        return found[0]

    def close(self) -> None:
        self._work.put(None)
        self._thread.join(HANG_S)


class OnLoop:
    """Every call but `close` runs in the thread of the turns."""

    def __init__(self, turns: Turns, engine: Engine) -> None:
        self._turns = turns
        self.behind = engine

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.behind, name)
        if not callable(found):
            return found
        return lambda *arguments, **named: self._turns.call(found, *arguments, **named)

    def close(self) -> None:
        self.behind.close()


class OpenedPage:
    """An engine and its thread; both end with it."""

    def __init__(self, opener: Callable[[Callable[[Callable[[], None]], object]], Engine]) -> None:
        self._turns = Turns()
        try:
            self._on_loop = OnLoop(self._turns, opener(self._turns.post))
        except BaseException:
            self._turns.close()
            raise
        self.engine = cast("Engine", self._on_loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._on_loop.close()
        self._turns.close()


def kafka_page(brokers: str, **options: Any) -> OpenedPage:
    """`options`: of KafkaEngineOptions."""
    chosen = KafkaEngineOptions(KafkaOptions(brokers), **options)
    return OpenedPage(lambda post: KafkaEngine(chosen, post))
