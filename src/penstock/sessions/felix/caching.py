"""Cache requests of Felix: put and get, in the scope that a request names or in the one of all others.

A put is answered when it is durable, where the cache has a topic behind it. Gets come in runs, and a run is
looked up and answered in pieces of many. Does not publish or subscribe. Hot: compiled by mypyc.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.counters import ProtocolCounters
from penstock.broker.errors import BrokerError, Code
from penstock.broker.port import Port
from penstock.broker.tenants.names import joined
from penstock.errors import PenstockError
from penstock.log.engine import AppendToken, Pending
from penstock.sessions.base import Slot
from penstock.sessions.felix.options import DEFAULT_SCOPE, FelixOptions
from penstock.sessions.felix.publishes import refusal_of
from penstock.sessions.stream import Stream
from penstock.wire.felix import messages as m
from penstock.wire.felix.gets import GetRun, encode_refusals, encode_values

# A request that waits counts as so many bytes besides its key: a peer may send very many small ones.
WAITING_BYTES: Final = 512
# Answers with so many bytes of values are written at once, so that a peer that does not read is noticed
# before the next ones.
LARGE_ANSWER_BYTES: Final = 64 * 1024

NOT_BASE64: Final = "value: not base64 of the standard alphabet with padding"


Done = TypeVar("Done")


class Conversation(Protocol):
    """The session, as its cache requests see it."""

    port: Port
    options: FelixOptions
    counters: ProtocolCounters
    stream: Stream

    @property
    def principal(self) -> Principal: ...
    def hold(self, size: int) -> Slot: ...
    def settle(self, slot: Slot, reply: bytes) -> None: ...
    def answer(self, reply: bytes) -> None: ...
    def answer_many(self, replies: bytes, count: int) -> None: ...
    def guarded(self, callback: Callable[[Done], None]) -> Callable[[Done], None]: ...
    def send(self) -> None: ...


def scope_of(
    session: Conversation, tenant: str | None, namespace: str | None, cache: str | None
) -> str:
    """Raises BrokerError for one that is not there and may not be made."""
    if tenant is None or namespace is None or cache is None:
        return DEFAULT_SCOPE
    scope = joined(tenant, namespace, cache)
    known = scope is not None and session.port.tenants.has_cache(scope)
    if scope is None or not (known or session.options.auto_create):
        text = f"cache scope not found: {tenant}/{namespace}/{cache}"
        raise BrokerError(Code.UNKNOWN_TOPIC, text)
    return scope


class Put:
    """One cache_put: the cache itself is made where it has to be, then the value is stored."""

    __slots__ = ("_request", "_session", "_slot")

    def __init__(self, session: Conversation, request: m.CachePut) -> None:
        self._session = session
        self._request = request
        self._slot: Slot | None = None

    def begin(self) -> None:
        session, request = self._session, self._request
        value = m.decode_base64(request.value)
        if value is None:
            session.counters.errors["request"] += 1
            session.answer(m.encode_error(request.request_id, NOT_BASE64))
            return
        try:
            scope = scope_of(session, request.tenant_id, request.namespace, request.cache)
            session.port.require(session.principal, Operation.WRITE_CACHE, scope)
            making = None
            if scope != DEFAULT_SCOPE:
                making = session.port.tenants.ensure_cache(session.principal, scope)
        except PenstockError as error:
            self._done(error)
            return
        if making is None:
            self._store(scope, value)
            return
        self._slot = session.hold(len(value) + WAITING_BYTES)
        making.on_done(session.guarded(lambda made: self._made(made, scope, value)))

    def _made(self, made: Pending[object], scope: str, value: bytes) -> None:
        if made.error is None:
            self._store(scope, value)
        else:
            self._done(made.error)

    def _store(self, scope: str, value: bytes) -> None:
        session, request = self._session, self._request
        try:
            token = session.port.cache.put(
                session.principal, scope, request.key, value, request.ttl_ms
            )
        except PenstockError as error:
            self._done(error)
            return
        if token is None:
            self._done(None)
            return
        if self._slot is None:
            self._slot = session.hold(len(value) + WAITING_BYTES)
        token.on_done(session.guarded(self._stored))

    def _stored(self, token: AppendToken) -> None:
        self._done(token.error)

    def _done(self, error: BaseException | None) -> None:
        session, request_id = self._session, self._request.request_id
        if error is None:
            reply = m.encode_cached(request_id)
        else:
            text = refusal_of(session.port, session.principal, error)
            reply = m.encode_error(request_id, text)
        if self._slot is None:
            self._session.answer(reply)
        else:
            self._session.counters.frames_out += 1
            self._session.settle(self._slot, reply)


def answer_gets(session: Conversation, run: GetRun) -> bool:
    """Answers a run of gets in pieces. False when the rest has to wait, for the peer or for a turn. While
    the cache is read back, all of the run waits for that, in one place among the answers."""
    port, principal, count = session.port, session.principal, len(run.keys)
    if not run.done:
        session.counters.frames_in += count
    try:
        scope = scope_of(session, run.tenant, run.namespace, run.cache)
        while run.done < count:
            values = port.cache.get(principal, scope, run.keys, run.done, LARGE_ANSWER_BYTES)
            if values is None:
                _answer_later(session, run, scope)
                return True
            reply = encode_values(run, values)
            run.done += len(values)
            session.answer_many(reply, len(values))
            if run.done < count:
                session.send()
                if session.stream.congested or session.stream.give_way():
                    return False
    except PenstockError as error:
        text = m.text(refusal_of(port, principal, error))
        session.answer_many(encode_refusals(run, text), count - run.done)
        run.done = count
    return True


def _answer_later(session: Conversation, run: GetRun, scope: str) -> None:
    """When the cache is there. The session has counted them, and has one place for all their answers."""
    first = run.done
    waiting = run.keys[first:]
    slot = session.hold(sum([len(key) + WAITING_BYTES for key in waiting]))

    def loaded(_: object) -> None:
        try:
            values = session.port.cache.get(session.principal, scope, run.keys, first, None)
            assert values is not None, "it is there"
            reply = encode_values(run, values)
        except PenstockError as error:
            text = m.text(refusal_of(session.port, session.principal, error))
            reply = encode_refusals(run, text)
        session.counters.frames_out += len(waiting)
        session.settle(slot, reply)

    session.port.cache.when_loaded(session.guarded(loaded))
