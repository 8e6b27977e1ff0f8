"""The identity behind a request: that of a key, or the one set for a protocol without a login."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity behind a request. `rules` are topic patterns; none means every topic."""

    name: str
    role: str
    rules: tuple[str, ...] = ()
    key_id: int | None = None  # of the stored key; None for all others
    # Of a key of the configuration: changes with its secret and its rights, and reveals neither.
    mark: bytes = field(default=b"", compare=False, repr=False)
