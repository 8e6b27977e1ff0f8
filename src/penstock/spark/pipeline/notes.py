"""What the building blocks have to say while a project's files are read: a topic that is not there yet,
for example.

The files of a project are run by Spark, which has no way back for such words.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_gathering: list[list[str]] = []


def note(text: str) -> None:
    """For whoever started the update. Under plain spark-pipelines nobody listens."""
    if _gathering:
        _gathering[-1].append(text)


@contextmanager
def gathered_notes(into: list[str]) -> Iterator[None]:
    _gathering.append(into)
    try:
        yield
    finally:
        _gathering.remove(into)
