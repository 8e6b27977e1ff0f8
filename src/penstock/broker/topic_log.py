"""Log lines about messages of a topic that cannot come for each message: one per topic and minute.

Adds up what happens in between, so that the numbers of all lines together are the whole. Has no clock:
the caller passes the time.
"""

from collections.abc import Callable
from typing import Final

# Often enough to see that it goes on, seldom enough that a fast publisher does not fill the log.
INTERVAL_US: Final = 60 * 1_000_000


class TopicLog:
    """`say` gets a topic, how many messages since its last line, and the last reason given."""

    def __init__(self, say: Callable[[str, int, str], None]) -> None:
        self._say = say
        self._waiting: dict[str, tuple[int, str]] = {}
        self._silent_until_us: dict[str, int] = {}

    def note(self, topic: str, count: int, reason: str = "") -> None:
        if count:
            self._waiting[topic] = (self._waiting.get(topic, (0, ""))[0] + count, reason)

    def speak(self, now_us: int) -> None:
        """A line for each topic that has something to say, and said nothing for a minute."""
        over = [topic for topic, until_us in self._silent_until_us.items() if until_us <= now_us]
        for topic in over:
            del self._silent_until_us[topic]
        for topic in [topic for topic in self._waiting if topic not in self._silent_until_us]:
            count, reason = self._waiting.pop(topic)
            self._silent_until_us[topic] = now_us + INTERVAL_US
            self._say(topic, count, reason)
