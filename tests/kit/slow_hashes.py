"""Slow hashes of API keys that a test holds back, for logins that wait for their turn."""

import threading

from kit.limits import HANG_S

SECRET = "correct horse"


class SlowHashes:
    """Takes the place of `keys.matches_slow_hash`: every hash waits until it is let go. `tried` has the
    keys in the order of their turns."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.begun = threading.Event()
        self._turns = threading.Semaphore(0)

    def __call__(self, key: str, text: str) -> bool:
        self.tried.append(key)
        self.begun.set()
        assert self._turns.acquire(timeout=HANG_S)
        return key == SECRET

    def let_go(self, number: int) -> None:
        self._turns.release(number)
