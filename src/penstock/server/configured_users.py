"""Users of the configuration: each is made once, at the first start that has it, or at a SIGHUP.

What became of it since (another password, other roles, deleted) stays as it is.
"""

from collections.abc import Mapping

from penstock.broker.access import keys
from penstock.broker.access.accounts import Accounts
from penstock.broker.access.principal import Principal
from penstock.broker.errors import BrokerError, Code
from penstock.server.config.schema import Config
from penstock.server.config.users import UserConfig

# In the log and in the audit trail.
CONFIGURATION = Principal("configuration", "admin")


def make_users(
    config: Config, accounts: Accounts, environment: Mapping[str, str]
) -> list[UserConfig]:
    """Gives those that it has made. Waits for the disk: in a thread. Raises PenstockError."""
    made = []
    for user in config.users:
        hashed = _Hashed(user, environment)
        if accounts.create_configured_user(CONFIGURATION, user.name, user.roles, hashed):
            made.append(user)
    return made


class _Hashed:
    """The password is read, and hashed, only where it is needed: later starts do without its file."""

    def __init__(self, user: UserConfig, environment: Mapping[str, str]) -> None:
        self._user = user
        self._environment = environment

    def __call__(self) -> str:
        password = self._user.password(self._environment)
        if password is not None:
            return keys.hash_slowly(password)
        text = self._user.hash or ""
        if not keys.is_slow_hash(text):
            raise BrokerError(
                Code.INVALID_SETTINGS,
                f"the hash of user {self._user.name!r} in the configuration is no argon2id hash; "
                "make one with penstock key hash",
            )
        return text
