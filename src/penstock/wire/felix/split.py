"""Splits what a Felix client sent into requests, publishes in runs. Hot: compiled by mypyc.

The input is one `bytes`: the rest of the previous read, followed by the last read. The walk stops at the
first incomplete frame or at a header that is none; the requests before it are always returned.

Publishes that follow each other with one tenant, namespace and stream are one run, JSON and binary, single
and batch alike: one append. Each keeps its place in the run, because each may want an answer. Reads of one
cache that follow each other are a run, too (gets.py). Any other frame ends the run. Carries out nothing.
"""

from typing import Final, TypeAlias, final

from mypy_extensions import i64

from penstock.wire.felix.batches import are_names, names_of, read_head, read_payloads
from penstock.wire.felix.frames import (
    FLAG_PUBLISH_BATCH,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    FelixProtocolError,
    frame_flaw,
)
from penstock.wire.felix.gets import GetRun, GetScan, scope_names
from penstock.wire.felix.messages import (
    NONE,
    Auth,
    CacheGet,
    CachePut,
    Flaw,
    Publish,
    PublishBatch,
    RequestId,
    Subscribe,
    decode_base64,
    decode_request,
    id_field,
    scope_fields,
    text,
)
from penstock.wire.primitives import read_u16, read_u32

# A run ends here: its cost per byte is low already, a larger one only delays its answers.
MAX_RUN_BYTES: Final = 1024 * 1024


@final
class PublishRun:
    """Messages of consecutive publishes to one stream. For each publish: the row behind its last message
    (`ends`), whether it wants an answer (`acked`), and its request id. `size`: bytes of their frames."""

    def __init__(self, tenant: str, namespace: str, stream: str) -> None:
        self.tenant = tenant
        self.namespace = namespace
        self.stream = stream
        self.values: list[bytes] = []
        self.ends: list[int] = []
        self.acked: list[bool] = []
        self.ids: list[RequestId] = []
        self.size: i64 = 0
        # The names as they stand in a binary batch; empty until there is one.
        self.raw_names = b""

    def add(self, values: list[bytes], acked: bool, request_id: RequestId, size: i64) -> None:
        self.values.extend(values)
        self.close(acked, request_id, size)

    def close(self, acked: bool, request_id: RequestId, size: i64) -> None:
        """The values of one more publish are in."""
        self.ends.append(len(self.values))
        self.acked.append(acked)
        self.ids.append(request_id)
        self.size += size

    def is_of(self, tenant: str, namespace: str, stream: str) -> bool:
        return (
            self.size < MAX_RUN_BYTES
            and self.stream == stream
            and self.namespace == namespace
            and self.tenant == tenant
        )

    def single(self, number: int) -> "PublishRun":
        """One of its publishes alone."""
        first = self.ends[number - 1] if number else 0
        values = self.values[first : self.ends[number]]
        alone = PublishRun(self.tenant, self.namespace, self.stream)
        size = HEADER_BYTES + sum([len(value) for value in values])
        alone.add(values, self.acked[number], self.ids[number], size)
        return alone


Item: TypeAlias = PublishRun | GetRun | Subscribe | CachePut | Auth | Flaw
Split: TypeAlias = tuple[list[Item], int, FelixProtocolError | None]


@final
class _Walk:
    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.items: list[Item] = []
        self.run: PublishRun | None = None
        self.gets: GetRun | None = None
        self.scan = GetScan()

    def binary(self, start: i64, end: i64) -> None:
        """A publish batch: of the run, of a new one, or a flaw."""
        buffer = self.buffer
        head = read_head(buffer, start, end)
        if head.flaw:
            self.other(Flaw(f"invalid publish batch: {head.flaw}"))
            return
        run = self.run
        raw = buffer[start : head.names_end]
        if run is None or run.raw_names != raw or run.size >= MAX_RUN_BYTES:
            names = names_of(buffer, start)
            if not are_names(names):
                self.other(Flaw("invalid publish batch: a name is not UTF-8"))
                return
            run = self.run_of(names[0].decode(), names[1].decode(), names[2].decode())
            run.raw_names = raw
        if read_payloads(buffer, head.names_end + 4, end, head.count, run.values):
            run.close(False, None, end - start + HEADER_BYTES)
        else:
            self.other(Flaw("invalid publish batch: a payload is cut off"))

    def json(self, start: i64, end: i64) -> None:
        if self.scan.read(self.buffer, start, end):
            self.plain_get()
            return
        request = decode_request(self.buffer[start:end])
        if isinstance(request, Publish):
            self.publish(request, [request.payload], "payload", end - start + HEADER_BYTES)
        elif isinstance(request, PublishBatch):
            self.publish(request, request.payloads, "payloads", end - start + HEADER_BYTES)
        elif isinstance(request, CacheGet):
            self.get(request)
        else:
            self.other(request)

    def publish(
        self, request: Publish | PublishBatch, texts: list[str], field: str, size: i64
    ) -> None:
        values: list[bytes] = []
        for encoded in texts:
            value = decode_base64(encoded)
            if value is None:
                what = f"{field}: not base64 of the standard alphabet with padding"
                self.other(Flaw(what, request.request_id))
                return
            values.append(value)
        acked = request.ack is not None and request.ack != NONE
        run = self.run_of(request.tenant_id, request.namespace, request.stream)
        run.add(values, acked, request.request_id, size)

    def plain_get(self) -> None:
        buffer, scan = self.buffer, self.scan
        scope = buffer[scan.scope_at : scan.scope_end]
        run = self.gets
        if run is None or not run.takes(scope):
            if scope:
                tenant, namespace, cache = scope_names(scope)
                run = self.new_gets(GetRun(scope, tenant, namespace, cache))
            else:
                run = self.new_gets(GetRun(b"", None, None, None))
        key_at, key_end = scan.key_at, scan.key_end
        id = b"," + buffer[scan.id_at : scan.id_end] if scan.id_end > scan.id_at else b""
        key = buffer[key_at + 1 : key_end - 1].decode("ascii")
        run.add(key, buffer[key_at:key_end], id)

    def get(self, request: CacheGet) -> None:
        """In another form than the plain one; its answer has the plain form all the same."""
        scope = scope_fields(request.tenant_id, request.namespace, request.cache)
        run = self.gets
        if run is None or not run.takes(scope):
            made = GetRun(scope, request.tenant_id, request.namespace, request.cache)
            run = self.new_gets(made)
        run.add(request.key, text(request.key), id_field(request.request_id))

    def new_gets(self, run: GetRun) -> GetRun:
        self.other(run)
        self.gets = run
        return run

    def run_of(self, tenant: str, namespace: str, stream: str) -> PublishRun:
        run = self.run
        if run is None or not run.is_of(tenant, namespace, stream):
            run = PublishRun(tenant, namespace, stream)
            self.run = run
            self.gets = None
            self.items.append(run)
        return run

    def other(self, item: Item) -> None:
        run = self.run
        if run is not None and not run.ends:  # of a batch that turned out to be none
            self.items.remove(run)
        self.run = None
        self.gets = None
        self.items.append(item)


def split_requests(
    buffer: bytes, start: i64, end: i64, max_bytes: i64 = MAX_PAYLOAD_BYTES
) -> Split:
    """All complete frames: (requests, where the rest begins, error).

    An error means: answer what comes before it, then end the connection (it has a code) or the stream. It
    is found as soon as its byte is there.
    """
    walk = _Walk(buffer)
    position = start
    while True:
        flaw = frame_flaw(buffer, position, end, max_bytes)
        if flaw is not None or end - position < HEADER_BYTES:
            return walk.items, position, flaw
        payload: i64 = position + HEADER_BYTES
        finish: i64 = payload + read_u32(buffer, position + 8)
        if finish > end:
            return walk.items, position, None
        if read_u16(buffer, position + 6) & FLAG_PUBLISH_BATCH:
            walk.binary(payload, finish)
        else:
            walk.json(payload, finish)
        position = finish
