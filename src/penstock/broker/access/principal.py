"""Somebody who acts: a key, or whoever a protocol without a login acts as."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who acts. `rules` are topic patterns, none means every topic."""

    name: str
    role: str
    rules: tuple[str, ...] = ()
    key_id: int | None = None  # of the stored key; None for all others
    # Of a key of the configuration: changes with its secret and its rights. Tells nothing of them.
    mark: bytes = field(default=b"", compare=False, repr=False)
