"""Transactions of connections: their records are kept in memory until the commit, which makes them durable
and visible together (`commit_at_once` of the engine).

    begin --stage--> open --commit--> gone, and its name is remembered by the engine
                     open --roll_back, its time is over, or its connection is gone--> gone

A transaction belongs to the principal that began it, or to the connection where nobody is logged in. One
that grows large is moved to the engine's staging files in parts. Where its records go, and whether a topic
must be made for them, is decided when they leave the memory. Named transactions of Flight, which many tasks
stage, are the engine's alone.

Lives on the event loop; what waits for the disk runs in threads.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit import events
from penstock.broker.delivery.dead_letters import HEADER_ROOM_BYTES
from penstock.broker.errors import BrokerError, Code, RecordTooLarge, from_exception
from penstock.broker.records import Records
from penstock.broker.schemas.binding import dead_letter_place
from penstock.broker.schemas.violations import SchemaViolation
from penstock.broker.staged import RECORD_COST_BYTES, Staged, cost_of
from penstock.errors import PenstockError
from penstock.log.batch.view import Headers
from penstock.log.engine import Batch, Pending, Target
from penstock.log.errors import CommitUnfinished, InvalidTopicName, TransactionNotOpen
from penstock.names import flaw

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# What one transaction, and all of them together, hold in memory. The first is also what a commit adds to
# the metadata at once: some milliseconds of a disk.
MEMORY_BYTES: Final = 1024 * 1024
MEMORY_BYTES_TOTAL: Final = 64 * 1024 * 1024
# A batch ends here: far below the largest that the log takes, and one is enough for what is held in memory.
BATCH_BYTES: Final = 4 * 1024 * 1024
# Calls of the engine at the same time: decisions of several commits share a flush. Others need threads too.
MAX_CALLS: Final = 3
# The time of a transaction is measured in ticks: one that is not used for longer than these is over.
TICKS: Final = 8
ID_PREFIX: Final = "txn-"
MAX_ID_LENGTH: Final = 64
# Everything that is staged by a connection counts as one task.
TASK: Final = 0
# What the engine has staged lives this much longer than the time of a transaction: only the calls here say
# whether it is used, and after a crash nobody does.
STAGED_TIMES: Final = 10

SECOND_US: Final = 1_000_000


class _Owner:
    """A principal that has begun transactions. Its ids are numbered, so that the engine remembers them as a
    range."""

    __slots__ = ("id", "next_number", "open", "principal", "staged_bytes", "stem")

    def __init__(self, principal: Principal, stem: str) -> None:
        self.id = owner_id(principal)
        self.principal = principal
        self.stem = stem
        self.next_number = 0
        self.open = 0
        self.staged_bytes = 0


class OpenTransaction:
    """`user`: the connection that it belongs to; None when it belongs to the principal."""

    __slots__ = (
        "begun_us",
        "cost",
        "door",
        "ending",
        "groups",
        "id",
        "last_tick",
        "letters",
        "moved_bytes",
        "moving",
        "name",
        "owner",
        "records",
        "user",
    )

    def __init__(
        self, id: str, owner: _Owner, user: object | None, begun_us: int, door: str
    ) -> None:
        self.id = id
        self.door = door
        self.begun_us = begun_us
        self.owner = owner
        self.name = own_name(owner.id, id)
        self.user = user
        # By topic, in the order of arrival, and the memory that they take.
        self.records: dict[str, Staged] = {}
        # What the schemas of topics refuse, by topic: dead letters of the commit.
        self.letters: dict[str, list[Records]] = {}
        self.cost = 0
        self.last_tick = 0
        # What the engine has staged of it.
        self.groups = 0
        self.moved_bytes = 0
        self.moving: Pending[object] | None = None
        # The commit that is under way.
        self.ending: Pending[object] | None = None

    @property
    def staged_bytes(self) -> int:
        return self.cost + self.moved_bytes


def owner_id(principal: Principal) -> str:
    """A user and a key of the same name, one of which is gone by now, are two owners. No principal has a
    tab in its name."""
    return principal.name if principal.user_id is None else f"user\t{principal.name}"


def own_name(owner: str, name: str) -> str:
    """A name in the engine. It has that of the principal and not its id: a key that is revoked and created
    again goes on with its transactions. No principal has a line break in its name."""
    return f"{owner}\n{name}"


class TransactionCounters:
    __slots__ = ("begun", "committed", "expired", "rolled_back")

    def __init__(self) -> None:
        self.begun = 0
        self.committed = 0
        self.rolled_back = 0
        self.expired = 0


class OpenTransactions:
    def __init__(
        self,
        broker: "Broker",
        schedule: Callable[[float, Callable[[], None]], object],
        new_stem: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """`new_stem` gives an id's part that no two owners and no two runs of the server share."""
        self._broker = broker
        self._engine = broker.engine
        self._schedule = schedule
        self._new_stem = new_stem
        self.counters = TransactionCounters()
        # By id; the one that was not used for longest is the first.
        self._open: dict[str, OpenTransaction] = {}
        # As many as there are principals.
        self._owners: dict[str, _Owner] = {}
        self._memory_bytes = 0
        self._ticks = 0
        self._ticking = False
        self._calls = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def __iter__(self) -> Iterator[OpenTransaction]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    @property
    def staged_bytes(self) -> int:
        return sum(owner.staged_bytes for owner in self._owners.values())

    # --- what sessions ask for -------------------------------------------------------------------

    def begin(self, principal: Principal, user: object | None) -> str:
        """The id of a new transaction. Raises LIMIT_REACHED."""
        self._broker.require(principal, Operation.OPEN_TRANSACTION)
        self._refuse_while_stopping()
        owner = self._owners.get(owner_id(principal))
        if owner is None:
            owner = _Owner(principal, self._new_stem())
            self._owners[owner.id] = owner
        most = self._broker.options.max_open_transactions
        if owner.open >= most:
            raise BrokerError(
                Code.LIMIT_REACHED,
                f"{principal.name} has {owner.open} open transactions, limits.transactions_per_key ="
                f" {most}; commit or roll back some, or raise the limit",
            )
        new_id = f"{ID_PREFIX}{owner.stem}-{owner.next_number}"
        begun = OpenTransaction(new_id, owner, user, self._broker.clock_us(), principal.origin.door)
        owner.next_number += 1
        owner.open += 1
        self._use(begun)
        self.counters.begun += 1
        if not self._ticking:
            self._ticking = True
            self._plan_tick()
        return begun.id

    def stage(
        self,
        principal: Principal,
        user: object,
        id: str,
        topic: str,
        values: list[bytes],
        headers: Sequence[Headers] | None = None,
    ) -> Pending[object] | None:
        """Keeps records for the commit. What has to be written first, when they are many; else None.

        Raises TRANSACTION_NOT_OPEN, RecordTooLarge, SchemaViolation, LIMIT_REACHED: then none of them
        is kept.
        """
        found = self._to_stage(principal, user, id, topic)
        self._check_records(topic, values)
        cost = sum(map(len, values)) + RECORD_COST_BYTES * len(values) + cost_of(headers)
        self._check_quota(found.owner, cost)
        kept = found.records.setdefault(topic, Staged())
        kept.add(values, headers)
        self._count(found, cost)
        self._use(found)
        return self._kept(found, lambda: kept.drop_last(len(values)), cost)

    def stage_letter(
        self,
        principal: Principal,
        user: object,
        id: str,
        topic: str,
        value: bytes,
        violation: SchemaViolation,
        protocol: str,
        headers: Headers | None = None,
    ) -> Pending[object] | None:
        """For a record that raised the violation and that the topic wants in its dead letters: it is there
        with the commit. As `stage`."""
        found = self._to_stage(principal, user, id, topic)
        self._check_letter(topic, len(value))
        own = None if headers is None else [headers]
        cost = len(value) + len(str(violation)) + RECORD_COST_BYTES + cost_of(own)
        self._check_quota(found.owner, cost)
        records = Records([value], None, own)
        letters = self._broker.schemas.letters(topic, records, violation, protocol)
        kept = found.letters.setdefault(topic, [])
        kept.append(letters)
        self._count(found, cost)
        self._use(found)
        return self._kept(found, kept.pop, cost)

    def _check_letter(self, topic: str, size: int) -> None:
        """Before the commit, which would fail as a whole."""
        name, _ = dead_letter_place(topic)
        reason = flaw(name)
        if reason is not None:
            raise InvalidTopicName(name, reason)
        info = self._engine.topic(name)
        if info is not None and size + HEADER_ROOM_BYTES > info.settings.record_bytes:
            raise RecordTooLarge(info.settings.record_bytes)

    def _to_stage(self, principal: Principal, user: object, id: str, topic: str) -> OpenTransaction:
        self._broker.require(principal, Operation.PUBLISH, topic)
        self._refuse_while_stopping()
        found = self._found(principal, user, id)
        if found is None:
            raise not_found(id)
        if found.ending is not None:
            raise BrokerError(Code.TRANSACTION_NOT_OPEN, "transaction is not active: committing")
        return found

    def _kept(
        self, found: OpenTransaction, undo: Callable[[], object], cost: int
    ) -> Pending[object] | None:
        """What has to be written first, of one that has grown large."""
        if found.moving is None and self._is_large(found):
            try:
                self._move(found)
            except PenstockError:
                undo()
                self._count(found, -cost)
                raise
        return found.moving

    def commit(self, principal: Principal, user: object, id: str) -> Pending[object]:
        """Done when all of it is durable and visible. Repeating it changes nothing.

        Raises what keeps it from being committed: it is still open then. Its error is the same, or says
        that it is unknown, or that it is decided and appears later.
        """
        self._broker.require(principal, Operation.END_TRANSACTION)
        found = self._found(principal, user, id)
        if found is None:
            return self._commit_again(principal, id)
        if found.ending is None:
            self._refuse_while_stopping()
            self._use(found)
            found.ending = self._commit(found)
            found.ending.on_done(lambda done: self._committed(found, done))
        return found.ending

    def roll_back(self, principal: Principal, user: object, id: str) -> Pending[object] | None:
        """Nothing of it will be seen. None when there is no such one that could be rolled back."""
        self._broker.require(principal, Operation.END_TRANSACTION)
        found = self._found(principal, user, id)
        if found is None or found.ending is not None:
            return None
        self.counters.rolled_back += 1
        return self._give_up(found)

    def roll_back_any(self, principal: Principal, id: str) -> Pending[object] | None:
        """As `roll_back`, whoever began it: for an administrator."""
        self._broker.require(principal, Operation.END_ANY_TRANSACTION)
        found = self._open.get(id)
        if found is None or found.ending is not None:
            return None
        self.counters.rolled_back += 1
        trail, details = self._broker.audit, {"owner": found.owner.principal.name}
        end = self._give_up(found)
        return trail.when_done(end, principal, events.TRANSACTION_ABORTED, id, details)

    def leave(self, user: object) -> None:
        """The connection is gone: what it began without a login ends with it."""
        for one in [one for one in self._open.values() if one.user is user]:
            if one.ending is None:
                self.counters.rolled_back += 1
                self._give_up(one)

    # --- looking at them -------------------------------------------------------------------------

    def _found(self, principal: Principal, user: object, id: str) -> OpenTransaction | None:
        """To others an id seems not to exist."""
        found = self._open.get(id)
        if found is None:
            return None
        owned = found.owner.id == owner_id(principal)
        mine = owned if found.user is None else found.user is user
        return found if mine else None

    def _check_records(self, topic: str, values: list[bytes]) -> None:
        """Before the commit, which would fail as a whole."""
        info = self._engine.topic(topic)
        reason = flaw(topic) if info is None else None
        if reason is not None:
            raise InvalidTopicName(topic, reason)
        settings = self._broker.options.default_settings if info is None else info.settings
        if max(map(len, values)) > settings.record_bytes:
            raise RecordTooLarge(settings.record_bytes)
        if info is not None:
            self._broker.schemas.check(info, Records(values))

    def _check_quota(self, owner: _Owner, more: int) -> None:
        most = self._broker.options.max_staged_bytes
        if owner.staged_bytes + more > most:
            raise BrokerError(
                Code.LIMIT_REACHED,
                f"{owner.principal.name} has staged {owner.staged_bytes} bytes and {more} more are over"
                f" limits.staged_bytes_per_key = {most};"
                " commit or roll back some, or raise the limit",
            )

    def _refuse_while_stopping(self) -> None:
        if self._broker.stopping:
            raise BrokerError(Code.SHUTTING_DOWN)

    # --- records leave the memory ----------------------------------------------------------------

    def _targets(self, one: OpenTransaction) -> list[Target]:
        """As batches, one for each partition where they are not many. Makes topics where there are none."""
        by = one.owner.principal
        targets = self._letters(one.letters, by)
        for topic, staged in one.records.items():
            partitions = self._broker.ensure_topic(topic, by).partitions
            placed: dict[int, Staged] = {}
            sizes: dict[int, int] = {}
            for run in staged.runs():
                size = sum(map(len, run.values))
                partition = self._broker.turn(topic, partitions, size)
                if sizes.get(partition, 0) + size > BATCH_BYTES:
                    targets.append((topic, partition, self._encoded(one, placed.pop(partition))))
                    sizes[partition] = 0
                placed.setdefault(partition, Staged()).add(run.values, run.headers)
                sizes[partition] = sizes.get(partition, 0) + size
            targets += [(topic, at, self._encoded(one, chosen)) for at, chosen in placed.items()]
        return targets

    def _letters(self, letters: dict[str, list[Records]], by: Principal) -> list[Target]:
        targets: list[Target] = []
        for topic, found in letters.items():
            self._broker.ensure_topic(topic, by)
            self._broker.dead_letters.ensure_topic(topic)
            place = dead_letter_place(topic)
            targets += [(*place, one.encoded(self._broker.clock_us)) for one in found]
        return targets

    def _encoded(self, one: OpenTransaction, staged: Staged) -> Batch:
        records = Records(staged.values, None, staged.headers)
        return records.encoded(self._broker.clock_us, one.door)

    def _is_large(self, one: OpenTransaction) -> bool:
        return one.cost > MEMORY_BYTES or self._memory_bytes > MEMORY_BYTES_TOTAL

    def _count(self, one: OpenTransaction, cost: int) -> None:
        one.cost += cost
        one.owner.staged_bytes += cost
        self._memory_bytes += cost

    def _move(self, one: OpenTransaction) -> None:
        """What is in memory goes to the engine's staging files. A part that fails is the end of it all."""
        targets = self._targets(one)
        cost, number = one.cost, one.groups
        one.records, one.letters, one.cost = {}, {}, 0
        one.moved_bytes += cost
        one.groups += 1
        one.moving = self._call(lambda: self._stage(one.name, number, targets))

        def moved(done: Pending[object]) -> None:
            one.moving = None
            self._memory_bytes -= cost
            if one.id not in self._open:
                return
            if done.error is not None:
                self._give_up(one)
            elif one.ending is None and self._is_large(one):
                self._move_or_give_up(one)

        one.moving.on_done(moved)

    def _move_or_give_up(self, one: OpenTransaction) -> None:
        try:
            self._move(one)
        except PenstockError:
            self._give_up(one)

    def _stage(self, name: str, number: int, targets: list[Target]) -> None:
        transactions = self._engine.transactions
        if number == 0:
            time_us = self._broker.options.transaction_time_us * STAGED_TIMES
            transactions.begin(name, time_us)
        transactions.stage_groups(name, TASK, [targets], number)

    # --- the end ---------------------------------------------------------------------------------

    def _commit(self, one: OpenTransaction) -> Pending[object]:
        """Raises what is wrong with its records."""
        if one.moving is None:
            return self._commit_now(one)
        result: Pending[object] = Pending()

        def moved(done: Pending[object]) -> None:
            error = done.error
            if error is None:
                try:
                    self._commit_now(one).on_done(lambda end: result.settle(None, end.error))
                    return
                except PenstockError as refused:
                    error = refused
            result.settle(None, error)

        one.moving.on_done(moved)
        return result

    def _commit_now(self, one: OpenTransaction) -> Pending[object]:
        targets = self._targets(one)
        transactions, name, groups = self._engine.transactions, one.name, one.groups

        def commit() -> None:
            try:
                if not groups:
                    transactions.commit_at_once(name, targets)
                    return
                if targets:
                    self._stage(name, groups, targets)
                transactions.commit(name, {TASK: groups + bool(targets)})
            except TransactionNotOpen as error:
                raise not_found(one.id).caused_by(error) from error

        return self._call(commit)

    def _committed(self, one: OpenTransaction, done: Pending[object]) -> None:
        """Decided, it is the engine's. Not decided, it is still open, unless the engine knows better."""
        if done.error is None or isinstance(done.error, CommitUnfinished):
            self.counters.committed += 1
            self._forget(one)
        elif from_exception(done.error).code is Code.TRANSACTION_NOT_OPEN:
            self._forget(one)
        else:
            one.ending = None

    def _commit_again(self, principal: Principal, id: str) -> Pending[object]:
        """Of a transaction that is not here: perhaps its name is remembered."""
        if not id.startswith(ID_PREFIX) or len(id) > MAX_ID_LENGTH:
            raise not_found(id)
        transactions = self._engine.transactions
        # The second: users had the names of keys once, and what they committed then is known by those.
        names = own_name(owner_id(principal), id), own_name(principal.name, id)

        def look() -> None:
            name = next((one for one in names if transactions.state(one) != "unknown"), names[0])
            state = transactions.state(name)
            if state == "committing":
                transactions.commit(name, {})
            elif state != "committed":  # open: left from before a restart, and not whole
                raise not_found(id)

        return self._call(look)

    def _give_up(self, one: OpenTransaction) -> Pending[object]:
        """Done when nothing of it is left."""
        self._forget(one)
        transactions, name = self._engine.transactions, one.name
        result: Pending[object] = Pending()
        if one.moving is not None:
            one.moving.on_done(
                lambda _: self._call(lambda: transactions.abort(name)).on_done(
                    lambda done: result.settle(None, done.error)
                )
            )
        elif one.groups:
            return self._call(lambda: transactions.abort(name))
        else:
            result.settle(None, None)
        return result

    def _forget(self, one: OpenTransaction) -> None:
        if self._open.pop(one.id, None) is not None:
            one.owner.open -= 1
            one.owner.staged_bytes -= one.staged_bytes
            self._memory_bytes -= one.cost
            one.records, one.letters = {}, {}

    # --- time ------------------------------------------------------------------------------------

    def _use(self, one: OpenTransaction) -> None:
        one.last_tick = self._ticks
        self._open.pop(one.id, None)
        self._open[one.id] = one

    def _plan_tick(self) -> None:
        time_us = self._broker.options.transaction_time_us
        self._schedule(time_us / TICKS / SECOND_US, self._tick)

    def _tick(self) -> None:
        self._ticks += 1
        for one in self:
            if self._ticks - one.last_tick <= TICKS:
                break
            if one.ending is None:
                self.counters.expired += 1
                self._give_up(one)
        self._ticking = bool(self._open)
        if self._ticking:
            self._plan_tick()

    # --- threads ---------------------------------------------------------------------------------

    def _call(self, work: Callable[[], object]) -> Pending[object]:
        """Runs a call of the engine in a thread; a few at a time, in their order."""
        result: Pending[object] = Pending()

        def start() -> None:
            self._calls += 1
            self._broker.aside(work).on_done(finished)

        def finished(done: Pending[object]) -> None:
            self._calls -= 1
            if self._waiting:
                self._waiting.popleft()()
            result.settle(None, done.error)

        if self._calls < MAX_CALLS:
            start()
        else:
            self._waiting.append(start)
        return result


def not_found(id: str) -> BrokerError:
    """Also of one whose time was over, and of one that belongs to somebody else."""
    return BrokerError(Code.TRANSACTION_NOT_OPEN, f"transaction not found: {id}")
