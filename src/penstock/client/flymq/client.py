"""A FlyMQ client: all operations of the protocol on one connection.

    async with FlyMQClient("127.0.0.1:9092") as client:
        await client.produce("orders", b"one", key=b"customer-7")
        async for batch in client.consume_group("orders", "billing"):
            ...

Answers come in the order of the requests, so requests are sent without waiting for the answers before. Uses
the layouts of the protocol's document and reads the errors of all servers. asking.py has the connection;
the operations are in the modules of their subjects.
"""

from types import TracebackType

from penstock.client.blocking import BlockingFace
from penstock.client.flymq.accounts import AccountOperations
from penstock.client.flymq.asking import Asking
from penstock.client.flymq.groups import GroupOperations
from penstock.client.flymq.registry import DeadLetterOperations, RegistryOperations
from penstock.client.flymq.topics import TopicOperations
from penstock.client.flymq.transactions import TransactionOperations
from penstock.client.settings import ClientSettings
from penstock.client.tally import Tally


class FlyMQClient(
    GroupOperations,
    TransactionOperations,
    TopicOperations,
    RegistryOperations,
    DeadLetterOperations,
    AccountOperations,
):
    """One connection. Use it from one event loop; `blocking` wraps it for use without one."""

    def __init__(
        self,
        server: str,
        *,
        user: str = "",
        key: str | None = None,
        settings: ClientSettings | None = None,
    ) -> None:
        """`user` and `key`: the name of an API key and the key, or a user and a password. For our servers
        the key is enough."""
        self._asking = Asking(server, user, key, settings or ClientSettings())

    @classmethod
    def blocking(
        cls,
        server: str,
        *,
        user: str = "",
        key: str | None = None,
        settings: ClientSettings | None = None,
    ) -> BlockingFace:
        return BlockingFace(cls(server, user=user, key=key, settings=settings))

    async def __aenter__(self) -> "FlyMQClient":
        await self._asking.connection.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._asking.connection.close()

    @property
    def reconnects(self) -> int:
        return self._asking.connection.reconnects

    @property
    def tally(self) -> Tally:
        return self._asking.tally


def connect_flymq(
    server: str,
    *,
    user: str = "",
    key: str | None = None,
    settings: ClientSettings | None = None,
) -> BlockingFace:
    """`with connect_flymq("127.0.0.1:9092") as client: client.produce("orders", b"hi")`."""
    return FlyMQClient.blocking(server, user=user, key=key, settings=settings)
