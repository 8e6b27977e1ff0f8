"""The table of `tls.client_users`: which name in a certificate stands for which user."""

from collections.abc import Sequence
from typing import Final

ARROW: Final = "->"


class BadMapping(ValueError):
    """An entry of `tls.client_users` that is none."""


def parse_mapping(entries: Sequence[str]) -> dict[str, str]:
    """From "CN=app,O=Example -> billing" to names and users. Raises BadMapping."""
    table: dict[str, str] = {}
    for entry in entries:
        name, arrow, user = entry.rpartition(ARROW)
        name, user = name.strip(), user.strip()
        if not arrow or not name or not user:
            raise BadMapping(f'{entry!r}: write "name in the certificate {ARROW} user"')
        if name in table:
            raise BadMapping(f"{name!r} is there twice")
        table[name] = user
    return table
