"""The HTTP application: health, readiness, metrics, and the way to the API.

    GET /healthz             200 while the process works
    GET /readyz              200 while clients are accepted, 503 while starting and draining
    GET /metrics             Prometheus text; /metrics/partitions with topics and partitions as labels
    /api/v1/...              JSON, with `Authorization: Bearer <api key>`, or Basic with a user and the
                             password; see api.py and accounts.py

Names in paths are percent-encoded, `/` too. What a call means is in api.py, the sockets are in listener.py.
"""

import asyncio
import base64
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from penstock.broker.access.access import Principal
from penstock.broker.access.principal import Origin
from penstock.broker.access.slow_logins import LoginsPerAddress
from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.server.http import audit
from penstock.server.http.api import Api
from penstock.server.http.calls import (
    API_PREFIX,
    CALLS,
    Call,
)
from penstock.server.http.hosts import (
    MAX_SHOWN,
    MISDIRECTED_STATUS,
    Misdirected,
    check_host,
    check_origin,
)
from penstock.server.http.pages import Page, Pages
from penstock.server.http.protocol import CERTIFICATE
from penstock.server.metrics import CONTENT_TYPE, Metrics, PartitionPage
from penstock.server.net.address import Address
from penstock.server.net.peer_log import PeerLog

# A larger body is read in a thread.
DECODED_AT_ONCE_BYTES: Final = 64 * 1024
# People and programs, not message traffic. A page of records holds 8 MiB until its peer has read it. Probes
# and metrics are not counted: they are always answered.
MAX_CALLS: Final = 64
# Logins that wait for the slow hash of a key. A peer that is gone is not noticed before its turn.
MAX_LOGINS_PER_ADDRESS: Final = 32
# How long a login may wait for its turn: as long as a command waits for an answer.
LOGIN_TIME_S: Final = 10.0
# In the scope of a request: it counts as one of the calls that go on.
COUNTED: Final = "penstock.counted"

STATUS: Final = {
    Code.UNKNOWN_TOPIC: 404,
    Code.UNKNOWN_PARTITION: 404,
    Code.UNKNOWN_GROUP: 404,
    Code.UNKNOWN_KEY: 404,
    Code.UNKNOWN_DEAD_LETTER: 404,
    Code.UNKNOWN_DELAYED_MESSAGE: 404,
    Code.REPLAYED_ALREADY: 409,
    Code.UNKNOWN_SCHEMA: 404,
    Code.INVALID_SCHEMA: 400,
    Code.SCHEMA_VIOLATION: 422,
    Code.INCOMPATIBLE_SCHEMA: 409,
    Code.SCHEMA_IN_USE: 409,
    Code.SCHEMAS_NOT_INSTALLED: 501,
    Code.UNKNOWN_TENANT: 404,
    Code.TENANT_EXISTS: 409,
    Code.TENANT_IN_USE: 409,
    Code.UNKNOWN_USER: 404,
    Code.TRANSACTION_NOT_OPEN: 404,
    Code.TOPIC_EXISTS: 409,
    Code.KEY_EXISTS: 409,
    Code.USER_EXISTS: 409,
    Code.LIMIT_REACHED: 409,
    Code.LAST_ADMIN_KEY: 409,
    Code.INVALID_TOPIC_NAME: 400,
    Code.INVALID_SETTINGS: 400,
    Code.INVALID_REQUEST: 400,
    Code.OFFSET_OUT_OF_RANGE: 416,
    Code.RECORD_TOO_LARGE: 413,
    Code.NOT_AUTHENTICATED: 401,
    Code.NOT_AUTHORIZED: 403,
    Code.COMMIT_UNFINISHED: 503,
    Code.STORAGE_FULL: 507,
    Code.OVERLOADED: 503,
    Code.SHUTTING_DOWN: 503,
}
INTERNAL_STATUS: Final = 500

JSON: Final = "application/json"

T = TypeVar("T")

logger = logging.getLogger(__name__)


class HttpApp:
    """`api` is None until the log is open. `state` is "starting", "ready" or "draining". `names`: beside
    loopback names and the address itself, what `Host` may say."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        names: Sequence[str] = (),
        peer_log: PeerLog,
        on_failed_login: Callable[[str, str], None],
    ) -> None:
        self.metrics = metrics
        self.names = names
        self.api: Api | None = None
        self.state = "starting"
        # Why nothing can be stored, once there is an engine to ask.
        self.broken: Callable[[], str | None] = lambda: None
        # Whom a certificate stands for, once there is a broker to ask.
        self.certified: Callable[[bytes, str], Principal | None] = lambda certificate, peer: None
        self.pages = Pages()
        self.peer_log = peer_log
        self._on_failed_login = on_failed_login
        self._calls = 0
        self._logins = LoginsPerAddress(MAX_LOGINS_PER_ADDRESS)
        self._routes = Starlette(
            routes=[
                Route("/healthz", self._health),
                Route("/readyz", self._ready),
                Route("/metrics", self._metrics),
                Route("/metrics/partitions", self._partitions),
                *(Route(API_PREFIX + path, _Endpoint(self, path)) for path in CALLS),
            ],
            exception_handlers={HTTPException: self._refused},
        )

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return self._routes.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by uvicorn. An exception here is a bug; it is logged once per address and minute."""
        # Routes see the path as it was sent: an encoded `/` is part of a name.
        # With an older version starlette runs a task group around each page, and one that is cut off
        # stays in memory, page and all, until the garbage collector comes.
        asgi = {**scope["asgi"], "spec_version": "2.4"}
        scope = {**scope, "path": scope["raw_path"].decode("latin-1"), "asgi": asgi}
        try:
            await self._routes(scope, receive, send)
        except ClientDisconnect:
            return  # the peer is gone: there is nobody to answer
        except Exception as error:
            host = _address(scope)
            self.peer_log.note(host, host, f"HTTP: a request failed: {error!r}", error)

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        broken = self.broken() if self.state == "ready" else None
        if broken is not None:
            return _json({"status": "broken", "reason": broken}, 503)
        return _json({"status": self.state}, 200 if self.state == "ready" else 503)

    async def _metrics(self, request: Request) -> Response:
        refused = self._misdirected(request)
        return refused or Response(await self.metrics.summary(), media_type=CONTENT_TYPE)

    async def _partitions(self, request: Request) -> Response:
        refused = self._misdirected(request)
        pieces = self.pages.pieces(PartitionPage(self.metrics.engine))
        return refused or StreamingResponse(pieces, media_type=CONTENT_TYPE)

    def _misdirected(self, request: Request) -> Response | None:
        """The refusal of a request for another host."""
        try:
            check_host(request, self.names)
        except Misdirected as error:
            return _error(error)
        return None

    async def _refused(self, request: Request, error: Exception) -> Response:
        """No such path or method: starlette says so."""
        assert isinstance(error, HTTPException)
        path = request.scope["path"]
        if path.startswith(API_PREFIX):
            text = f"nothing at {path}; write / in a name as %2F"
            return _error(BrokerError(Code.INVALID_REQUEST, text), error.status_code)
        return PlainTextResponse(error.detail, error.status_code, error.headers)

    # --- calls of the API ------------------------------------------------------------------------

    async def answer(self, path: str, request: Request) -> Response:
        """Every error becomes an answer, ours with a log entry too."""
        try:
            check_host(request, self.names)
            check_origin(request)
            api, who = await self._login(request)
            call = CALLS[path].get(request.method)
            if call is None:
                answer = _error(BrokerError(Code.INVALID_REQUEST, f"no {request.method} here"), 405)
                answer.headers["Allow"] = ", ".join(sorted(CALLS[path]))
                return answer
            if self.state == "draining" and request.method != "GET":
                raise BrokerError(Code.SHUTTING_DOWN)
            if self._calls >= MAX_CALLS:
                raise BrokerError(
                    Code.OVERLOADED, f"{MAX_CALLS} calls go on already, try again soon"
                )
            self._calls += 1
            request.scope[COUNTED] = True
            return await self._call(call, api, who, request)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            return _error(from_exception(error))

    async def _call(self, call: Call, api: Api, who: Principal, request: Request) -> Response:
        arguments: list[Any] = [_decoded(name) for name in request.path_params.values()]
        query = _query(request, call.query)
        if call.query:
            arguments.append(query)
        if call.body is not None:
            arguments.append(await _body(request, call.body, call.body_bytes))
        found = call.function(api, who, *arguments)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, Page | audit.ExportPage):
            pieces = self.pages.pieces(found)
            return StreamingResponse(pieces, call.status, media_type=found.media_type)
        return Response(status_code=call.status) if found is None else _json(found, call.status)

    async def _login(self, request: Request) -> tuple[Api, Principal]:
        api = self.api
        if api is None:
            raise BrokerError(Code.OVERLOADED, "the server is starting, try again soon")
        host = _address(request.scope)
        certificate: bytes = request.scope.get(CERTIFICATE, b"")
        if certificate and "Authorization" not in request.headers:
            own = self.certified(certificate, _peer(request.scope))
            if own is not None:
                origin = Origin("http", host)
                api.broker.audit.login(origin, own.name, own)
                return api, api.broker.access.at(own, origin)
        name, key = _credentials(request)
        answer: asyncio.Future[Principal | None] = asyncio.get_running_loop().create_future()
        broker, origin = api.broker, Origin("http", host)

        def done(who: Principal | None) -> None:
            if not answer.done():
                answer.set_result(who)

        def wanted() -> bool:
            return not answer.done()

        self._logins.begin(host)
        try:
            if name is None:
                broker.login(key, done, wanted, origin)
            else:
                broker.login_as(name, key, done, wanted, origin)
            async with asyncio.timeout(LOGIN_TIME_S):
                who = await answer
        except TimeoutError:
            raise BrokerError(Code.OVERLOADED, "too many wrong logins, try again soon") from None
        finally:
            self._logins.end(host)
        if who is None:
            self._on_failed_login(host, f"{host} (HTTP)")
            words = "invalid API key" if name is None else "invalid username or password"
            raise BrokerError(Code.NOT_AUTHENTICATED, words)
        return api, who

    def ended(self, scope: Scope) -> None:
        """The answer is sent, or its peer is gone."""
        if scope.pop(COUNTED, False):
            self._calls -= 1


class _Endpoint:
    """One path of the API as starlette's routes want it: all methods, until the answer is sent."""

    def __init__(self, app: HttpApp, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._app.answer(self._path, Request(scope, receive))
            await answer(scope, receive, send)
        finally:
            self._app.ended(scope)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "unknown"


def _peer(scope: Scope) -> str:
    """With the port, as the log shows connections of the wire protocols."""
    client = scope.get("client")
    return str(Address(client[0], client[1])) if client else "unknown:0"


def _decoded(name: str) -> str:
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError:
        raise BrokerError(Code.INVALID_REQUEST, "the path is not UTF-8") from None


def _query(request: Request, known: tuple[str, ...]) -> dict[str, str]:
    """Raises INVALID_REQUEST for what is not known or there twice."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            words = f"there are {', '.join(known)}" if known else "there are none here"
            detail = f"no query parameter {name[:MAX_SHOWN]!r}; {words}"
            raise BrokerError(Code.INVALID_REQUEST, detail)
        if name in query:
            raise BrokerError(Code.INVALID_REQUEST, f"query parameter {name} is there twice")
        query[name] = value
    return query


def _credentials(request: Request) -> tuple[str | None, str]:
    """The API key of a request, or a name and a password. They are UTF-8 on every protocol; starlette reads
    Latin-1."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given = given.strip(" \t")
    try:
        if scheme.lower() == "bearer" and given:
            return None, given.encode("latin-1").decode()
        if scheme.lower() == "basic" and given:
            name, colon, password = base64.b64decode(given, validate=True).decode().partition(":")
            if name and colon:
                return name, password
    except UnicodeDecodeError:
        raise BrokerError(Code.NOT_AUTHENTICATED, "the API key is not UTF-8") from None
    except ValueError:
        raise BrokerError(Code.NOT_AUTHENTICATED, "Basic needs base64 of name:password") from None
    detail = "send an API key: Authorization: Bearer <key>"
    raise BrokerError(Code.NOT_AUTHENTICATED, detail)


async def _body(request: Request, kind: type[T], most: int) -> T:
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > most:
            raise BrokerError(Code.RECORD_TOO_LARGE, f"the body may have {most} bytes")
    try:
        if len(raw) > DECODED_AT_ONCE_BYTES:
            return await asyncio.to_thread(msgspec.json.decode, raw, type=kind)
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokerError(Code.INVALID_REQUEST, f"the body: {error}") from None


def _json(answer: dict[str, Any] | bytes, status: int = 200) -> Response:
    """`answer`: what shall be written as JSON, or JSON."""
    body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    return Response(body, status, media_type=JSON)


def _error(error: BrokerError, status: int | None = None) -> Response:
    if status is None:
        status = STATUS.get(error.code, INTERNAL_STATUS)
        status = MISDIRECTED_STATUS if isinstance(error, Misdirected) else status
    if error.code is Code.INTERNAL:
        logger.error("an API call failed", exc_info=error.__cause__ or error)
    code = error.code
    body = {"error": {"number": code.number, "name": code.name, "text": str(error)}}
    answer = _json(body, status)
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer
