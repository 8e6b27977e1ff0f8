"""Felix's cache_get in runs: requests in the form that clients write, and the answers to many as one piece.
Hot: compiled by mypyc.

    request   {"type":"cache_get",SCOPE,"key":K,"request_id":R}               without scope or id as well,
                                                                              and the id before the key
    scope     "tenant_id":T,"namespace":N,"cache":C
    answer    {"type":"cache_value",SCOPE,"key":K,"value":V,"request_id":R}   with a scope
              {"type":"cache_value","request_id":R,"key":K,"value":V}         without

Only what goes back unchanged is read here: no white space, texts of printable ASCII without an escape, ids
that are such a text or a number of up to 19 digits. Everything else is left to the JSON library
(messages.py). Looks up nothing.
"""

from binascii import b2a_base64
from typing import Final, final

from librt.strings import BytesWriter, read_i32_be, read_i64_be
from mypy_extensions import i64

from penstock.wire.primitives import write_u32

# A run ends here: it is one step between two looks at the clock.
MAX_RUN_GETS: Final = 64
# Of a request id as JSON, quotes included; messages.py judges longer ones.
MAX_PLAIN_ID_BYTES: Final = 1_024
# A whole number of so many digits is below 2**64.
MAX_PLAIN_DIGITS: Final = 19

_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_FIRST_PRINTABLE: Final = 0x20
_LAST_PRINTABLE: Final = 0x7E
_ZERO: Final = 0x30
_NINE: Final = 0x39

# {"type":"cache_get", in three numbers.
_TYPE_BYTES: Final = 20
_TYPE_FIRST: Final = 0x7B22_7479_7065_223A
_TYPE_SECOND: Final = 0x2263_6163_6865_5F67
_TYPE_LAST: Final = 0x6574_222C
# The first letters of the fields that may follow it.
_T: Final = 0x74
_R: Final = 0x72
_TENANT: Final = b'"tenant_id":'
_NAMESPACE: Final = b',"namespace":'
_CACHE: Final = b',"cache":'
_COMMA: Final = b","
_KEY: Final = b'"key":'
_NEXT_KEY: Final = b',"key":'
_ID: Final = b'"request_id":'
_NEXT_ID: Final = b',"request_id":'
_BRACE: Final = 0x7D
_END: Final = b"}"

# Magic, version and flags of a frame; its length follows.
_FRAME: Final = b"FLX1\x00\x01\x00\x00"
_VALUE_TYPE: Final = b'{"type":"cache_value"'
_VALUE: Final = b',"value":'
_NULL: Final = b"null"
_ERROR_TYPE: Final = b'{"type":"error"'
_MESSAGE: Final = b',"message":'


@final
class GetRun:
    """Requests that follow each other for values of one scope, whose names are None together. `scope`: its
    three fields as JSON, empty for none. For each request its key, the key as JSON, and the field of its
    id with the comma before it, empty for none. `done`: how many are answered."""

    def __init__(
        self, scope: bytes, tenant: str | None, namespace: str | None, cache: str | None
    ) -> None:
        self.scope = scope
        self.tenant = tenant
        self.namespace = namespace
        self.cache = cache
        self.keys: list[str] = []
        self.key_texts: list[bytes] = []
        self.id_fields: list[bytes] = []
        self.done = 0

    def add(self, key: str, key_text: bytes, id_field: bytes) -> None:
        self.keys.append(key)
        self.key_texts.append(key_text)
        self.id_fields.append(id_field)

    def takes(self, scope: bytes) -> bool:
        return len(self.keys) < MAX_RUN_GETS and self.scope == scope


def _text_end(buffer: bytes, start: i64, end: i64) -> i64:
    """Behind the closing quote of the plain text that begins at `start`; 0 where there is none."""
    if start >= end or buffer[start] != _QUOTE:
        return 0
    at: i64 = start + 1
    while at < end:
        byte: i64 = buffer[at]
        at += 1
        if byte == _QUOTE:
            return at
        if byte < _FIRST_PRINTABLE or byte > _LAST_PRINTABLE or byte == _BACKSLASH:
            return 0
    return 0


def _number_end(buffer: bytes, start: i64, end: i64) -> i64:
    """Behind a whole number without a sign; 0 where there is none, or one that may be too large."""
    at: i64 = start
    while at < end and _ZERO <= buffer[at] <= _NINE:
        at += 1
    digits: i64 = at - start
    if digits == 0 or digits > MAX_PLAIN_DIGITS or (digits > 1 and buffer[start] == _ZERO):
        return 0
    return at


def _id_end(buffer: bytes, start: i64, end: i64) -> i64:
    finish = _text_end(buffer, start, end)
    if finish == 0:
        return _number_end(buffer, start, end)
    return finish if finish - start <= MAX_PLAIN_ID_BYTES else 0


def _skip(buffer: bytes, at: i64, word: bytes) -> i64:
    """Behind the word, where it stands at `at`; else 0."""
    finish: i64 = at + len(word)
    return finish if buffer[at:finish] == word else 0


@final
class GetScan:
    """Reads one request after the other; what was found is in its fields until the next. Positions: of the
    scope, of the key with its quotes, and of the id's field without the comma; an empty span for none."""

    def __init__(self) -> None:
        self.scope_at: i64 = 0
        self.scope_end: i64 = 0
        self.key_at: i64 = 0
        self.key_end: i64 = 0
        self.id_at: i64 = 0
        self.id_end: i64 = 0

    def read(self, buffer: bytes, start: i64, end: i64) -> bool:
        """False if the payload is anything else than a request in the plain form."""
        at: i64 = start + _TYPE_BYTES
        # The least that can follow is a brace behind a key, and what is looked at below is in the frame.
        if (
            end - at < len(_KEY) + 3
            or read_i64_be(buffer, start) != _TYPE_FIRST
            or read_i64_be(buffer, start + 8) != _TYPE_SECOND
            or i64(read_i32_be(buffer, start + 16)) != _TYPE_LAST
        ):
            return False
        at = self._scope(buffer, at, end)
        if at == 0:
            return False
        self.id_at = self.id_end = at
        named: i64 = 0
        if at + 1 < end and buffer[at + 1] == _R:
            named = _skip(buffer, at, _ID)
        if named != 0:
            self.id_end = _id_end(buffer, named, end)
            if self.id_end == 0:
                return False
            at = _skip(buffer, self.id_end, _NEXT_KEY)
        else:
            at = _skip(buffer, at, _KEY)
        if at == 0:
            return False
        self.key_at = at
        self.key_end = at = _text_end(buffer, at, end)
        if at == 0:
            return False
        if named == 0 and at < end and buffer[at] != _BRACE:
            named = _skip(buffer, at, _NEXT_ID)
            if named == 0:
                return False
            self.id_at = at + 1
            self.id_end = at = _id_end(buffer, named, end)
        return at != 0 and at == end - 1 and buffer[at] == _BRACE

    def _scope(self, buffer: bytes, start: i64, end: i64) -> i64:
        """Where the field behind the scope begins; 0 where a part of the scope is missing."""
        self.scope_at = self.scope_end = start
        if buffer[start + 1] != _T:
            return start
        at = _skip(buffer, start, _TENANT)
        if at == 0:
            return 0
        at = _text_end(buffer, at, end)
        for name in (_NAMESPACE, _CACHE):
            if at == 0:
                return 0
            at = _skip(buffer, at, name)
            if at != 0:
                at = _text_end(buffer, at, end)
        self.scope_end = at
        return 0 if at == 0 else _skip(buffer, at, _COMMA)


def scope_names(scope: bytes) -> tuple[str, str, str]:
    """Tenant, namespace and cache of a scope that a GetScan has found."""
    end: i64 = len(scope)
    tenant_at: i64 = len(_TENANT)
    tenant_end = _text_end(scope, tenant_at, end)
    namespace_at: i64 = tenant_end + len(_NAMESPACE)
    namespace_end = _text_end(scope, namespace_at, end)
    cache_at: i64 = namespace_end + len(_CACHE)
    return (
        scope[tenant_at + 1 : tenant_end - 1].decode("ascii"),
        scope[namespace_at + 1 : namespace_end - 1].decode("ascii"),
        scope[cache_at + 1 : end - 1].decode("ascii"),
    )


def encode_values(run: GetRun, values: list[bytes | None]) -> bytes:
    """The answers to the next requests of the run, one for each value; None: there is none."""
    writer = BytesWriter()
    scope = b"," + run.scope if run.scope else b""
    at = run.done
    for value in values:
        key = run.key_texts[at]
        id_field = run.id_fields[at]
        shown = _NULL if value is None else b2a_base64(value, newline=False)
        # Type, scope, key, value, id and the closing brace; two quotes around a value that is there.
        size: i64 = len(_VALUE_TYPE) + len(scope) + len(_NEXT_KEY) + len(key) + len(_VALUE)
        size += len(shown) + len(id_field) + 1
        if value is not None:
            size += 2
        writer.write(_FRAME)
        write_u32(writer, size)
        writer.write(_VALUE_TYPE)
        if scope:
            writer.write(scope)
        else:
            writer.write(id_field)
        writer.write(_NEXT_KEY)
        writer.write(key)
        writer.write(_VALUE)
        if value is None:
            writer.write(shown)
        else:
            writer.append(_QUOTE)
            writer.write(shown)
            writer.append(_QUOTE)
        if scope:
            writer.write(id_field)
        writer.write(_END)
        at += 1
    return writer.getvalue()


def encode_refusals(run: GetRun, message: bytes) -> bytes:
    """An `error` for each request of the run that is not answered. `message`: a text as JSON."""
    writer = BytesWriter()
    for id_field in run.id_fields[run.done :]:
        size: i64 = len(_ERROR_TYPE) + len(id_field) + len(_MESSAGE) + len(message) + 1
        writer.write(_FRAME)
        write_u32(writer, size)
        writer.write(_ERROR_TYPE)
        writer.write(id_field)
        writer.write(_MESSAGE)
        writer.write(message)
        writer.write(_END)
    return writer.getvalue()
