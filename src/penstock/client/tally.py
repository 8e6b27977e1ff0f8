"""How much of what was published has been answered. Counts only; each client keeps its own."""

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Messages since the client was made. `confirmed` and `refused` never count the same one."""

    published: int = 0
    confirmed: int = 0
    refused: int = 0

    @property
    def unanswered(self) -> int:
        """Sent and unconfirmed: the answer is pending, or was lost with the connection."""
        return self.published - self.confirmed - self.refused
