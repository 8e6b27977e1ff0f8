"""The HTTP listener: health, readiness, metrics, and the way to the API. In the server's own loop.

    GET /healthz             200 while the process works
    GET /readyz              200 when clients may come, 503 while starting and draining
    GET /metrics             Prometheus text; /metrics/partitions with topics and partitions as labels
    /api/v1/...              JSON, with `Authorization: Bearer <api key>`; see api.py

Names in paths are percent-encoded, `/` too. What a call means is in api.py.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.server.http.api import Api
from penstock.server.http.api_types import GroupReset, KeyRequest, TopicChange, TopicRequest
from penstock.server.http.protocol import TimedProtocol
from penstock.server.metrics import CONTENT_TYPE, Metrics

# Requests are small: names, settings, offsets.
MAX_BODY_BYTES: Final = 1024 * 1024
# People, probes and scrapers, not message traffic. More get 503.
MAX_CONNECTIONS: Final = 256
KEEP_ALIVE_S: Final = 30
# Answers are quick; what is not out by then is cut off at a stop.
STOP_TIME_S: Final = 1
API_PREFIX: Final = "/api/v1/"

STATUS: Final = {
    Code.UNKNOWN_TOPIC: 404,
    Code.UNKNOWN_PARTITION: 404,
    Code.UNKNOWN_GROUP: 404,
    Code.UNKNOWN_KEY: 404,
    Code.TOPIC_EXISTS: 409,
    Code.KEY_EXISTS: 409,
    Code.LIMIT_REACHED: 409,
    Code.LAST_ADMIN_KEY: 409,
    Code.INVALID_TOPIC_NAME: 400,
    Code.INVALID_SETTINGS: 400,
    Code.INVALID_REQUEST: 400,
    Code.OFFSET_OUT_OF_RANGE: 416,
    Code.RECORD_TOO_LARGE: 413,
    Code.NOT_AUTHENTICATED: 401,
    Code.NOT_AUTHORIZED: 403,
    Code.STORAGE_FULL: 507,
    Code.OVERLOADED: 503,
    Code.SHUTTING_DOWN: 503,
}
INTERNAL_STATUS: Final = 500

T = TypeVar("T")
Names = tuple[str, ...]
Handler = Callable[["HttpApp", Principal, Names, Request], Awaitable[Response]]

logger = logging.getLogger(__name__)


class _Anything(Convertor[str]):
    """As starlette's `path`, and line breaks too: a name may be any text, and an error must be ours."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _Anything())


class HttpApp:
    """`api` is None until the log is open. `state` is "starting", "ready" or "draining"."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.api: Api | None = None
        self.state = "starting"
        # Why nothing can be stored, once there is an engine to ask.
        self.broken: Callable[[], str | None] = lambda: None
        self.app = Starlette(
            routes=[
                Route("/healthz", self._health),
                Route("/readyz", self._ready),
                Route("/metrics", self._metrics),
                Route("/metrics/partitions", self._partitions),
                Route(
                    API_PREFIX + "{rest:anything}",
                    self._api,
                    methods=["GET", "POST", "PATCH", "PUT", "DELETE"],
                ),
            ]
        )

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        broken = self.broken() if self.state == "ready" else None
        if broken is not None:
            return _json({"status": "broken", "reason": broken}, 503)
        return _json({"status": self.state}, 200 if self.state == "ready" else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.summary(), media_type=CONTENT_TYPE)

    async def _partitions(self, request: Request) -> Response:
        return Response(self.metrics.partitions(), media_type=CONTENT_TYPE)

    async def _api(self, request: Request) -> Response:
        try:
            return await self._call(request)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # every error becomes an answer, ours with a log entry too
            return _error(from_exception(error))

    async def _call(self, request: Request) -> Response:
        names, handlers = _find(request)
        who = await self._login(request)
        known = handlers.get(request.method)
        if known is None:
            answer = _error(BrokerError(Code.INVALID_REQUEST, f"no {request.method} here"), 405)
            answer.headers["Allow"] = ", ".join(sorted(handlers))
            return answer
        if self.state == "draining" and request.method != "GET":
            raise BrokerError(Code.SHUTTING_DOWN)
        _, handler = known
        return await handler(self, who, names, request)

    async def _login(self, request: Request) -> Principal:
        if self.api is None:
            raise BrokerError(Code.OVERLOADED, "the server is starting, try again soon")
        key = _bearer(request)
        answer: asyncio.Future[Principal | None] = asyncio.get_running_loop().create_future()
        self.api.broker.access.login(
            key,
            lambda who: None if answer.done() else answer.set_result(who),
            wanted=lambda: not answer.done(),
            address=request.client.host if request.client is not None else "",
        )
        who = await answer
        if who is None:
            if self.metrics.hub is not None:
                self.metrics.hub.counters.failed_logins += 1
            raise BrokerError(Code.NOT_AUTHENTICATED, "invalid API key")
        return who

    @property
    def calls(self) -> Api:
        assert self.api is not None, "a call comes after a login"
        return self.api


# --- calls ---------------------------------------------------------------------------------------


async def _topics(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    return _json(http.calls.topics(who))


async def _create_topic(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    body = await _body(request, TopicRequest)
    return _json(await http.calls.create_topic(who, body), 201)


async def _topic(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    return _json(http.calls.topic(who, names[0]))


async def _change_topic(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    body = await _body(request, TopicChange)
    return _json(await http.calls.change_topic(who, names[0], body))


async def _delete_topic(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    await http.calls.delete_topic(who, names[0])
    return Response(status_code=204)


async def _purge_topic(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    return _json(await http.calls.purge_topic(who, names[0]))


async def _records(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    return _json(await http.calls.records(who, names[0], request.query_params))


async def _groups(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    return _json(http.calls.groups(who))


async def _group(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    return _json(http.calls.group(who, names[0]))


async def _reset_group(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    body = await _body(request, GroupReset)
    return _json(await http.calls.reset_group(who, names[0], body))


async def _delete_group(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    await http.calls.delete_group(who, names[0])
    return Response(status_code=204)


async def _keys(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    return _json(await http.calls.keys(who))


async def _create_key(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    body = await _body(request, KeyRequest)
    return _json(await http.calls.create_key(who, body), 201)


async def _revoke_key(http: HttpApp, who: Principal, names: Names, request: Request) -> Response:
    await http.calls.revoke_key(who, names[0], request.query_params)
    return Response(status_code=204)


# Without a key, for probes and scrapers: path -> what it is in the table of rights.
OPEN_CALLS: Final = {
    "/healthz": Operation.CHECK_HEALTH,
    "/readyz": Operation.CHECK_HEALTH,
    "/metrics": Operation.READ_METRICS,
    "/metrics/partitions": Operation.READ_METRICS,
}
# Path behind the prefix ("*" is a name) -> method -> what it is in the table of rights, and the call.
CALLS: Final[dict[Names, dict[str, tuple[Operation, Handler]]]] = {
    ("topics",): {
        "GET": (Operation.LIST_TOPICS, _topics),
        "POST": (Operation.CREATE_TOPIC, _create_topic),
    },
    ("topics", "*"): {
        "GET": (Operation.DESCRIBE_TOPIC, _topic),
        "PATCH": (Operation.CHANGE_TOPIC, _change_topic),
        "DELETE": (Operation.DELETE_TOPIC, _delete_topic),
    },
    ("topics", "*", "records"): {"GET": (Operation.READ_RECORDS, _records)},
    ("topics", "*", "purge"): {"POST": (Operation.PURGE_TOPIC, _purge_topic)},
    ("groups",): {"GET": (Operation.LIST_GROUPS, _groups)},
    ("groups", "*"): {
        "GET": (Operation.LIST_GROUPS, _group),
        "DELETE": (Operation.DELETE_GROUP, _delete_group),
    },
    ("groups", "*", "reset"): {"POST": (Operation.RESET_GROUP, _reset_group)},
    ("keys",): {
        "GET": (Operation.LIST_KEYS, _keys),
        "POST": (Operation.CREATE_KEY, _create_key),
    },
    ("keys", "*"): {"DELETE": (Operation.REVOKE_KEY, _revoke_key)},
}


def _find(request: Request) -> tuple[Names, Mapping[str, tuple[Operation, Handler]]]:
    """The names in the path and its calls. From the raw path: an encoded `/` is part of a name."""
    raw = request.scope["raw_path"].decode("latin-1")
    try:
        parts = [unquote(part, errors="strict") for part in raw.removeprefix(API_PREFIX).split("/")]
    except UnicodeDecodeError:
        raise BrokerError(Code.INVALID_REQUEST, "the path is not UTF-8") from None
    for pattern, handlers in CALLS.items():
        if len(pattern) == len(parts) and all(
            wanted in ("*", part) for wanted, part in zip(pattern, parts, strict=True)
        ):
            names = zip(pattern, parts, strict=True)
            return tuple(part for wanted, part in names if wanted == "*"), handlers
    raise _NotFound(raw)


class _NotFound(BrokerError):
    def __init__(self, path: str) -> None:
        super().__init__(Code.INVALID_REQUEST, f"nothing at {path}; write / in a name as %2F")


def _bearer(request: Request) -> str:
    """The API key of a request. Keys are UTF-8 on every protocol; starlette reads Latin-1."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        detail = "send an API key: Authorization: Bearer <key>"
        raise BrokerError(Code.NOT_AUTHENTICATED, detail)
    try:
        return key.strip(" \t").encode("latin-1").decode()
    except UnicodeDecodeError:
        raise BrokerError(Code.NOT_AUTHENTICATED, "the API key is not UTF-8") from None


async def _body(request: Request, kind: type[T]) -> T:
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY_BYTES:
            raise BrokerError(Code.RECORD_TOO_LARGE, f"the body may have {MAX_BODY_BYTES} bytes")
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokerError(Code.INVALID_REQUEST, f"the body: {error}") from None


def _json(answer: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _error(error: BrokerError, status: int | None = None) -> Response:
    if status is None:
        status = 404 if isinstance(error, _NotFound) else STATUS.get(error.code, INTERNAL_STATUS)
    if error.code is Code.INTERNAL:
        logger.error("an API call failed", exc_info=error.__cause__ or error)
    code = error.code
    body = {"error": {"number": code.number, "name": code.name, "text": str(error)}}
    answer = _json(body, status)
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


# --- the listener --------------------------------------------------------------------------------


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the server's business."""
        yield


class HttpListener:
    """uvicorn on sockets that are bound already, in the running loop."""

    def __init__(self, app: HttpApp, sockets: list[socket.socket], tls: ssl.SSLContext | None):
        # Our own log lines say what matters; uvicorn's tell of its start and stop.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        config = uvicorn.Config(
            app.app,
            http=TimedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_TIME_S,
        )
        config.load()
        config.ssl = tls
        self._sockets = sockets
        self._server = _Uvicorn(config)
        self._server.lifespan = config.lifespan_class(config)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._server.startup(sockets=self._sockets)
        self._ticking = asyncio.create_task(self._server.main_loop())

    async def stop(self) -> None:
        if self._ticking is not None:
            self._server.should_exit = True
            await self._ticking
            await self._server.shutdown(sockets=self._sockets)
