"""The operations of a FlyMQ client: produce, fetch, consume, transactions, topics and groups.

    async with FlyMQClient("127.0.0.1:9092") as client:
        await client.produce("orders", b"one", key=b"customer-7")
        async for batch in client.consume("orders", 0, group="billing"):
            ...

Answers come in the order of the requests, so requests are sent without waiting for the answers before. Uses
the layouts of the protocol's document and reads the errors of all servers. asking.py has the connection.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, TypeAlias

from penstock.client.blocking import BlockingFace
from penstock.client.errors import Refused
from penstock.client.flymq.asking import Asking, name_of
from penstock.client.flymq.share import Share
from penstock.client.settings import ClientSettings
from penstock.client.tally import Tally
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.layout import Message
from penstock.wire.flymq.opcodes import OPCODES, encode_request

Mode: TypeAlias = Literal["earliest", "latest", "commit"]

ANY_PARTITION: Final = -1
DEFAULT_MESSAGES: Final = 1_000
# Messages that are sent with one write; the next write does not wait for their answers.
SENT_TOGETHER: Final = 500
# Waiting after an empty FETCH: the protocol cannot hold one back.
IDLE_FIRST_S: Final = 0.002
IDLE_MOST_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """`messages` with offset, key (empty: none) and value; `next_offset` is where to read on."""

    topic: str
    partition: int
    messages: list[m.FetchedMessage]
    next_offset: int

    @property
    def values(self) -> list[bytes]:
        return [message.value for message in self.messages]

    def __len__(self) -> int:
        return len(self.messages)


class FlyMQClient:
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

    async def _ask(self, opcode: int, request: Message, on: str = "") -> Message:
        kind = OPCODES[opcode].reply
        return await self._asking.ask(opcode, request, kind, _what(opcode, on))

    # ---- records ----

    async def produce(
        self, topic: str, value: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> m.RecordMetadata:
        """Appends one record; where it is, on disk as the topic's durability says. Calls that run at the
        same time are pipelined. Without a partition the key chooses it, or the server."""
        keys = None if key is None else [key]
        return (await self.produce_many(topic, [value], keys=keys, partition=partition))[0]

    async def produce_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
    ) -> list[m.RecordMetadata]:
        """One request for each value, sent without waiting; where each is. After the first refusal the
        later ones were sent all the same: each stands for itself."""
        where = ANY_PARTITION if partition is None else partition
        what = _what(0x01, topic)
        sent = []
        for start in range(0, len(values), SENT_TOGETHER):
            chunk = values[start : start + SENT_TOGETHER]
            given = [None] * len(chunk) if keys is None else keys[start : start + SENT_TOGETHER]
            frames = [
                encode_request(0x01, m.Produce(topic, key or b"", value, where))
                for key, value in zip(given, chunk, strict=True)
            ]
            sent.append(await self._asking.begin(b"".join(frames), len(chunk), 1, what))
        replies = [reply for begun in sent for reply in await self._asking.answer(begun, what)]
        return [self._asking.expect(reply, 0x01, m.RecordMetadata, what) for reply in replies]

    async def produce_with_ttl(
        self, topic: str, values: Sequence[bytes], ttl_ms: int
    ) -> list[m.RecordMetadata]:
        """As produce_many; the records are delivered to nobody when they are this old. 0: for ever."""
        frames = [encode_request(0x35, a.ProduceWithTtl(topic, one, ttl_ms)) for one in values]
        return await self._produce_frames(0x35, topic, frames)

    async def produce_delayed(
        self, topic: str, values: Sequence[bytes], delay_ms: int
    ) -> list[m.RecordMetadata]:
        """As produce_many; the records come into the topic when the delay is over. The offset of each
        answer is an id for `cancel_delayed`."""
        frames = [encode_request(0x30, a.ProduceDelayed(topic, one, delay_ms)) for one in values]
        return await self._produce_frames(0x30, topic, frames)

    async def cancel_delayed(self, number: int) -> None:
        """Refused when the message is there already, or was cancelled."""
        await self._change(0x31, a.CancelDelayed(f"delayed-{number}"), f"delayed-{number}")

    async def _produce_frames(
        self, opcode: int, topic: str, frames: list[bytes]
    ) -> list[m.RecordMetadata]:
        what = _what(opcode, topic)
        sent = []
        for start in range(0, len(frames), SENT_TOGETHER):
            chunk = frames[start : start + SENT_TOGETHER]
            sent.append(await self._asking.begin(b"".join(chunk), len(chunk), 1, what))
        replies = [reply for begun in sent for reply in await self._asking.answer(begun, what)]
        return [self._asking.expect(reply, opcode, m.RecordMetadata, what) for reply in replies]

    async def get(self, topic: str, partition: int, offset: int) -> m.Consumed:
        """The record of exactly this offset."""
        found = await self._ask(0x02, m.Consume(topic, partition, offset), topic)
        assert isinstance(found, m.Consumed)
        return found

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_messages: int = DEFAULT_MESSAGES,
        filter: str | None = None,
        patient: bool = False,
    ) -> FetchedBatch:
        """Records from `offset` on, or those that fit the filter. At the log end the batch is empty."""
        request = m.Fetch(topic, partition, offset, max_messages, filter)
        found = await self._asking.ask(
            0x0B, request, m.SdkFetched, _what(0x0B, topic), patient=patient
        )
        head, messages = found.fetched
        return FetchedBatch(topic, partition, messages, head.next_offset)

    async def consume(
        self,
        topic: str,
        partition: int,
        *,
        group: str = "",
        start: Mode | int = "commit",
        max_messages: int = DEFAULT_MESSAGES,
        filter: str | None = None,
        auto_commit: bool = True,
    ) -> AsyncGenerator[FetchedBatch, None]:
        """Batches without end. `start`: "commit" is the group's committed offset, or the earliest where
        there is none. `auto_commit` commits a batch for the group when the next is asked for, so that each
        is seen at least once."""
        position = start
        if not isinstance(position, int):
            position = await self.subscribe(topic, partition, group, position, patient=True)
        idle_s = IDLE_FIRST_S
        surroundings = self._asking.connection.settings.surroundings
        while True:
            batch = await self.fetch(
                topic, partition, position, max_messages=max_messages, filter=filter, patient=True
            )
            if batch.messages:
                yield batch
                if group and auto_commit:
                    await self.commit(topic, partition, group, batch.next_offset, patient=True)
                idle_s = IDLE_FIRST_S
            elif batch.next_offset == position:
                await surroundings.sleep(idle_s)
                idle_s = min(IDLE_MOST_S, 2 * idle_s)
            position = batch.next_offset

    async def subscribe(
        self, topic: str, partition: int, group: str, mode: Mode, *, patient: bool = False
    ) -> int:
        """Where to begin; with a group the connection counts as its member from now on."""
        request = m.Subscribe(topic, group, partition, mode)
        found = await self._asking.ask(0x05, request, m.Offset, _what(0x05, topic), patient=patient)
        return found.offset

    # ---- transactions ----

    async def begin_transaction(self) -> str:
        """The id of a new transaction. Without a login it lives as long as the connection."""
        return (await self._asking.ask(0x40, m.Nothing(), a.TransactionDone, _what(0x40, ""))).id

    async def stage(self, transaction: str, topic: str, values: Sequence[bytes]) -> None:
        """Records that the commit makes visible, together with all others of the transaction. Sent without
        waiting; where one was refused, roll back."""
        what = _what(0x43, topic)
        sent = []
        for start in range(0, len(values), SENT_TOGETHER):
            chunk = values[start : start + SENT_TOGETHER]
            frames = [
                encode_request(0x43, a.TransactionProduce(transaction, topic, value))
                for value in chunk
            ]
            sent.append(await self._asking.begin(b"".join(frames), len(chunk), 1, what))
        replies = [reply for begun in sent for reply in await self._asking.answer(begun, what)]
        for reply in replies:
            self._asking.expect(reply, 0x43, m.RecordMetadata, what)

    async def commit_transaction(self, transaction: str) -> None:
        """All of it is durable and visible afterwards. May be repeated: after a lost answer, say."""
        await self._end_transaction(0x41, transaction)

    async def roll_back_transaction(self, transaction: str) -> None:
        """Refused when there is no such one any more."""
        await self._end_transaction(0x42, transaction)

    async def _end_transaction(self, opcode: int, transaction: str) -> None:
        what = _what(opcode, transaction)
        request = a.Transaction(transaction)
        done = await self._asking.ask(opcode, request, a.TransactionDone, what)
        if not done.success:
            raise Refused(0, f"transaction not found: {transaction}", what)

    async def consume_group(
        self,
        topic: str,
        group: str,
        *,
        timeout_ms: int = 30_000,
        max_messages: int = DEFAULT_MESSAGES,
        auto_commit: bool = True,
    ) -> AsyncGenerator[FetchedBatch, None]:
        """Batches without end, of the partitions that the group assigns to this client. A client that is
        silent for `timeout_ms`, also because it works on a batch, loses them to the others. Only our server
        has this."""
        surroundings = self._asking.connection.settings.surroundings
        share = Share(self._asking, topic, group, timeout_ms, surroundings.clock_s)
        await share.join()
        positions: dict[int, int] = {}
        idle_s = IDLE_FIRST_S
        try:
            while True:
                await share.beat_when_due()
                positions = {
                    number: positions[number]
                    if number in positions
                    else await self.subscribe(topic, number, group, "commit", patient=True)
                    for number in share.partitions
                }
                empty = True
                for number, offset in list(positions.items()):
                    batch = await self.fetch(
                        topic, number, offset, max_messages=max_messages, patient=True
                    )
                    positions[number] = batch.next_offset
                    if batch.messages:
                        empty = False
                        yield batch
                        if auto_commit:
                            await self.commit(topic, number, group, batch.next_offset, patient=True)
                if empty:
                    await surroundings.sleep(idle_s)
                idle_s = min(IDLE_MOST_S, 2 * idle_s) if empty else IDLE_FIRST_S
        finally:
            await share.leave()

    # ---- topics ----

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        """One that is there already stays as it is."""
        await self._change(0x03, m.CreateTopic(topic, partitions), topic)

    async def delete_topic(self, topic: str) -> None:
        await self._change(0x09, m.Topic(topic), topic)

    async def list_topics(self) -> list[str]:
        found = await self._ask(0x08, m.Nothing())
        assert isinstance(found, m.Names)
        return found.names

    async def describe_topic(self, topic: str) -> m.TopicMetadata:
        """Its partitions, each with the first offset and the one after the last."""
        found = await self._ask(0x04, m.Topic(topic), topic)
        assert isinstance(found, m.TopicMetadata)
        return found

    # ---- groups ----

    async def commit(
        self, topic: str, partition: int, group: str, offset: int, *, patient: bool = False
    ) -> None:
        """`patient`: over as many lost connections as the settings allow, as `consume` does it."""
        await self._change(0x06, m.Commit(topic, group, partition, offset), topic, patient=patient)

    async def committed(self, topic: str, partition: int, group: str) -> int:
        """0 if the group never committed there; NotFound if there is no such group on the topic."""
        return await self._offset(0x60, m.GroupPartition(topic, group, partition), topic)

    async def reset_offset(
        self, topic: str, partition: int, group: str, to: Literal["earliest", "latest"] | int
    ) -> None:
        mode, offset = ("offset", to) if isinstance(to, int) else (to, None)
        await self._change(0x61, m.ResetOffset(topic, group, partition, mode, offset), topic)

    async def seek_to_time(self, topic: str, partition: int, time_ms: int, group: str = "") -> int:
        """The first offset of that time or later; committed for the group, if one is given."""
        return await self._offset(0x66, m.SeekToTimestamp(topic, group, partition, time_ms), topic)

    async def list_groups(self) -> list[m.GroupRow]:
        found = await self._ask(0x62, m.Nothing())
        assert isinstance(found, m.GroupRows)
        return found.groups

    async def describe_group(self, group: str, topic: str = "") -> m.GroupRow:
        """On one topic, or on the first one that it has read."""
        found = await self._ask(0x63, m.Group(topic, group), group)
        assert isinstance(found, m.GroupRow)
        return found

    async def lag(self, topic: str, partition: int, group: str) -> m.Lag:
        found = await self._ask(0x64, m.GroupPartition(topic, group, partition), topic)
        assert isinstance(found, m.Lag)
        return found

    async def delete_group(self, group: str, topic: str = "") -> None:
        """On one topic, or on all of them."""
        await self._change(0x65, m.Group(topic, group), group)

    # ---- the server ----

    async def cluster_status(self) -> m.ClusterStatus:
        found = await self._ask(0x52, m.Nothing())
        assert isinstance(found, m.ClusterStatus)
        return found

    async def who_am_i(self) -> m.WhoAmI:
        found = await self._ask(0x72, m.Nothing())
        assert isinstance(found, m.WhoAmI)
        return found

    # ---- users and rules of topics; these need an administrator ----

    async def create_user(self, user: str, password: str, roles: Sequence[str] = ()) -> None:
        """Roles: admin, producer, consumer, guest."""
        request = a.UserRequest(user, password, "", list(roles), True)
        await self._ask(0x73, request, user)

    async def update_user(
        self, user: str, roles: Sequence[str] = (), *, enabled: bool = True
    ) -> None:
        """Replaces the roles and the state."""
        await self._change(0x75, a.UserRequest(user, "", "", list(roles), enabled), user)

    async def delete_user(self, user: str) -> None:
        await self._change(0x74, a.UserName(user), user)

    async def change_password(self, user: str, password: str, current: str = "") -> None:
        """`current`: for the own account, which every user may change."""
        await self._change(0x7C, a.UserRequest(user, password, current, []), user)
        self._asking.password_changed(user, password)

    async def list_users(self) -> list[a.User]:
        found = await self._ask(0x76, m.Nothing())
        assert isinstance(found, a.Users)
        return found.users

    async def describe_user(self, user: str) -> a.User:
        found = await self._ask(0x77, a.UserName(user), user)
        assert isinstance(found, a.User)
        return found

    async def set_rule(
        self,
        topic: str,
        *,
        public: bool = False,
        users: Sequence[str] = (),
        roles: Sequence[str] = (),
    ) -> None:
        """Replaces the rule of a topic, or of all that fit a pattern."""
        await self._change(0x78, a.SetRule(topic, public, list(users), list(roles)), topic)

    async def delete_rule(self, topic: str) -> None:
        """One that is not there is deleted already."""
        await self._change(0x7A, m.Topic(topic), topic)

    async def describe_rule(self, topic: str) -> a.Rule:
        """Also where there is none: `exists` tells."""
        found = await self._ask(0x79, m.Topic(topic), topic)
        assert isinstance(found, a.Rule)
        return found

    async def list_rules(self) -> list[a.RuleRow]:
        found = await self._ask(0x7B, m.Nothing())
        assert isinstance(found, a.Rules)
        return found.rules

    async def list_roles(self) -> list[a.Role]:
        found = await self._ask(0x7D, m.Nothing())
        assert isinstance(found, a.Roles)
        return found.roles

    async def _change(
        self, opcode: int, request: Message, on: str, *, patient: bool = False
    ) -> None:
        """Some servers answer with the flag alone, which is enough."""
        what = _what(opcode, on)
        done = await self._asking.ask(opcode, request, m.Done, what, patient=patient)
        if not done.success:
            raise Refused(0, done.message, what)

    async def _offset(self, opcode: int, request: Message, on: str) -> int:
        found = await self._ask(opcode, request, on)
        assert isinstance(found, m.Offset)
        return found.offset


def connect_flymq(
    server: str,
    *,
    user: str = "",
    key: str | None = None,
    settings: ClientSettings | None = None,
) -> BlockingFace:
    """`with connect_flymq("127.0.0.1:9092") as client: client.produce("orders", b"hi")`."""
    return FlyMQClient.blocking(server, user=user, key=key, settings=settings)


def _what(opcode: int, on: str) -> str:
    return f"{name_of(opcode)} {on}".rstrip()
