"""Topic rules: who may use a topic beside those whose role allows it.

A rule stands for a topic, or for all that fit a pattern (`*` is any text). It names users (or API keys) and
roles that may read and write there, or says that the topic is public: then everybody may who has logged in.
A rule never takes a right away, gives none to administer, and none on internal topics.

Holds all rules in memory. Reads belong to any thread, changes to one that may wait for the disk.
"""

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Final

import msgspec

from penstock.broker.access.rights import is_internal
from penstock.broker.access.stored import change
from penstock.broker.access.users import checked_roles
from penstock.broker.errors import BrokerError, Code
from penstock.log.records import Edit, Metadata, Space
from penstock.names import MAX_NAME_BYTES, flaw

RULES: Final = "topic_rules"
# Users that one rule names; more are better named by a role.
MAX_RULE_USERS: Final = 1_000
# Topics whose rules are remembered: 200 bytes each and the name of the topic.
MAX_CACHED_TOPICS: Final = 16_384
_PATTERN: Final = re.compile(r"[*?\[]")
# What a topic is that has no rule.
DEFAULT_PUBLIC: Final = False

_logger = logging.getLogger(__name__)


class TopicRule(msgspec.Struct, frozen=True):
    """What is stored, named as the topic or the pattern. A field that is added later needs a default."""

    public: bool = False
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def grants(self, name: str, roles: Sequence[str]) -> bool:
        return self.public or name in self.users or any(role in self.roles for role in roles)


class TopicRules:
    """`changing` and `changed` as those of Users."""

    def __init__(
        self, metadata: Metadata | None, changing: threading.Lock, changed: Callable[[], None]
    ) -> None:
        self._metadata = metadata
        self._changing = changing
        self._changed = changed
        self._space = Space(metadata, RULES, TopicRule) if metadata is not None else None
        # Replaced as a whole, never changed.
        self._rules: Mapping[str, TopicRule] = self._stored()
        self._patterns: tuple[tuple[re.Pattern[str], TopicRule], ...] = ()
        self._fitting: dict[str, tuple[TopicRule, ...]] = {}
        self._prepare()

    def __len__(self) -> int:
        return len(self._rules)

    def all(self) -> Mapping[str, TopicRule]:
        """In the order of their names."""
        return self._rules

    def get(self, name: str) -> TopicRule | None:
        """The rule of exactly this name."""
        return self._rules.get(name)

    def grant(self, name: str, roles: Sequence[str], topic: str) -> bool:
        """Whether a rule lets the principal of this name and these roles use the topic."""
        if not self._rules or not topic or is_internal(topic):
            return False
        return any(rule.grants(name, roles) for rule in self._that_fit(topic))

    def grant_any(self, name: str, roles: Sequence[str]) -> bool:
        """Whether there may be a topic that a rule lets the principal use."""
        return any(rule.grants(name, roles) for rule in self._rules.values())

    def _that_fit(self, topic: str) -> tuple[TopicRule, ...]:
        cache = self._fitting
        found = cache.get(topic)
        if found is None:
            exact = self._rules.get(topic)
            found = () if exact is None else (exact,)
            found += tuple(rule for pattern, rule in self._patterns if pattern.match(topic))
            if (
                len(topic) <= MAX_NAME_BYTES
            ):  # no topic has a longer name, and it may be 64 KiB long
                if len(cache) >= MAX_CACHED_TOPICS:
                    cache.clear()
                cache[topic] = found
        return found

    # --- changes ----------------------------------------------------------------------------------

    def set(self, name: str, rule: TopicRule, most: int) -> None:
        """Replaces the rule of this name; durable on return. Raises INVALID_REQUEST, LIMIT_REACHED."""
        _check(name, rule)
        metadata, space = self._require_space()
        rule = TopicRule(rule.public, tuple(dict.fromkeys(rule.users)), checked_roles(rule.roles))
        with self._changing:
            if name not in self._rules and len(self._rules) >= most:
                raise BrokerError(
                    Code.LIMIT_REACHED,
                    f"there are {len(self._rules)} topic rules and 1 more is over"
                    f" limits.topic_rules = {most}; use a pattern, or raise the limit",
                )
            change(metadata, lambda: [space.put(name, rule)])
            self._keep({**self._rules, name: rule})

    def delete(self, name: str) -> bool:
        """Durable on return; False when there was none."""
        metadata, space = self._require_space()
        with self._changing:
            if name not in self._rules:
                return False
            # First in memory: if the disk fails, the rule grants nothing at least until a restart.
            self._keep({one: rule for one, rule in self._rules.items() if one != name})

            def edits() -> list[Edit]:
                return [space.delete(name)]

            change(metadata, edits)
        return True

    def _keep(self, rules: Mapping[str, TopicRule]) -> None:
        self._rules = dict(sorted(rules.items()))
        self._prepare()
        self._changed()

    def _prepare(self) -> None:
        self._patterns = tuple(
            (re.compile(translate(name)), rule)
            for name, rule in self._rules.items()
            if _PATTERN.search(name)
        )
        self._fitting = {}

    def _stored(self) -> dict[str, TopicRule]:
        found = {}
        if self._metadata is not None and self._space is not None:
            for record in self._metadata.list(RULES):
                try:
                    found[record.name] = self._space.decode(record).value
                except msgspec.DecodeError:
                    # It grants nothing; all others do.
                    _logger.error("the rule of topic %r has an unreadable record", record.name)
        return found

    def _require_space(self) -> tuple[Metadata, Space[TopicRule]]:
        if self._metadata is None or self._space is None:
            raise BrokerError(Code.INVALID_REQUEST, "this server stores no topic rules")
        return self._metadata, self._space


def _check(name: str, rule: TopicRule) -> None:
    reason = flaw(name)
    if reason is not None:
        raise BrokerError(Code.INVALID_REQUEST, f"a rule needs the name of a topic: {reason}")
    if is_internal(name):
        text = f"no rule is for {name!r}: names that begin with _ belong to the server"
        raise BrokerError(Code.INVALID_REQUEST, text)
    if len(rule.users) > MAX_RULE_USERS:
        text = f"a rule names {MAX_RULE_USERS} users at most, not {len(rule.users)}; use a role"
        raise BrokerError(Code.INVALID_REQUEST, text)
    for user in rule.users:
        if (reason := flaw(user)) is not None:
            raise BrokerError(Code.INVALID_REQUEST, f"a rule names users: {reason}")
