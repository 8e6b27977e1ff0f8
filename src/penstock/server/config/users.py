"""The [[users]] tables of the configuration file: users that the first start makes.

    [[users]]
    name = "ops"                  # once in the file
    roles = ["admin"]             # admin, writer, reader, guest
    password_file = "..."         # exactly one of password_file, password_env, hash

A user is made once. From then on roles, password and state are those of the server, whatever stands here.
Passwords do not stand in the file: only where they are, or their hash (penstock key hash).
"""

from collections.abc import Mapping
from typing import Annotated, Final

from penstock.broker.access.rights import USER_ROLES
from penstock.server.config.errors import BadValue
from penstock.server.config.keys import file_content
from penstock.server.config.kinds import Names, Section, Text, keys_of
from penstock.server.config.tables import Locate, Nearest, Table, parse_tables

SECRET_FIELDS: Final = ("password_file", "password_env", "hash")
# As much as the slow hash takes.
MAX_PASSWORD_BYTES: Final = 1024


class UserConfig(Section, frozen=True):
    """One [[users]] table. `secret`: what the file or the variable holds."""

    name: Annotated[Text, "Once in the file."]
    roles: Annotated[Names, "What the user may do."] = ()
    password_file: Annotated[Text | None, "A file with the password in it."] = None
    password_env: Annotated[Text | None, "A variable of the environment that holds it."] = None
    hash: Annotated[Text | None, "The argon2id hash of the password."] = None

    def __repr__(self) -> str:
        return f"UserConfig(name={self.name!r}, roles={self.roles!r})"

    def password(self, environment: Mapping[str, str]) -> str | None:
        """None where a hash is given. Raises BadValue."""
        place, given, found = "users.password_file", self.password_file, ""
        if self.password_env is not None:
            place, given = "users.password_env", self.password_env
            found = environment.get(self.password_env, "")
        elif self.password_file is not None:
            try:
                found = file_content(self.password_file, MAX_PASSWORD_BYTES)
            except ValueError as error:
                raise BadValue(place, given, f"user {self.name!r}", str(error)) from None
        else:
            return None
        if not 0 < len(found.encode("utf-8", "surrogatepass")) <= MAX_PASSWORD_BYTES:
            expected = f"a password of 1 to {MAX_PASSWORD_BYTES} bytes there"
            raise BadValue(place, given, f"user {self.name!r}", expected)
        return found


_FIELDS: Final = keys_of(UserConfig)


def parse_users(tables: object, locate: Locate, nearest: Nearest) -> tuple[UserConfig, ...]:
    """All [[users]] of a file. Raises BadValue or UnknownKey; no hash is part of their text."""
    return parse_tables(tables, "users", locate, nearest, _FIELDS, ("hash",), _parse_user)


def _parse_user(table: Table) -> UserConfig:
    values = table.values()
    for role in values.get("roles", ()):
        if role not in USER_ROLES:
            raise table.bad("roles", role, f"roles of {', '.join(USER_ROLES)}")
    table.one_of(SECRET_FIELDS, "no password")
    return UserConfig(**values)
