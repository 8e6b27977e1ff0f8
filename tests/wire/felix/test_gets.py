"""Felix's runs of cache_get: what is read without the JSON library is what the library reads, and answers
have the bytes of the table's rows."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.wire.felix import messages as m
from penstock.wire.felix.frames import framed
from penstock.wire.felix.gets import (
    MAX_RUN_GETS,
    GetRun,
    GetScan,
    encode_refusals,
    encode_values,
)
from penstock.wire.felix.split import split_requests

SCOPE = {"tenant_id": "t1", "namespace": "default", "cache": "c"}


def compact(**fields: object) -> bytes:
    """As Rust's library writes it."""
    written = json.dumps({"type": "cache_get", **fields}, separators=(",", ":"), ensure_ascii=False)
    return written.encode()


def runs(*payloads: bytes) -> list[GetRun]:
    data = b"".join(map(framed, payloads))
    items, position, error = split_requests(data, 0, len(data))
    assert (position, error) == (len(data), None)
    found = [item for item in items if isinstance(item, GetRun)]
    assert len(found) == len(items)
    return found


def is_plain(payload: bytes) -> bool:
    """Also between other bytes, which it must not look at."""
    found = GetScan().read(payload, 0, len(payload))
    around = b'"}' + payload + b'"}'
    assert GetScan().read(around, 2, 2 + len(payload)) == found
    return found


# --- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        compact(key="k"),
        compact(key=""),
        compact(key="a/b c~"),
        compact(key="k", request_id=0),
        compact(key="k", request_id=9_999_999_999_999_999_999),
        compact(key="k", request_id=""),
        compact(request_id="7", key="k"),
        compact(request_id=7, key="k"),
        compact(**SCOPE, key="k"),
        compact(**SCOPE, key="k", request_id=4),
        compact(**SCOPE, request_id=4, key="k"),
    ],
)
def test_what_clients_write_is_plain(payload: bytes) -> None:
    assert is_plain(payload)
    (run,) = runs(payload)
    request = m.decode_request(payload)
    assert isinstance(request, m.CacheGet)
    assert (run.tenant, run.namespace, run.cache) == (
        request.tenant_id,
        request.namespace,
        request.cache,
    )
    assert run.scope == m.scope_fields(request.tenant_id, request.namespace, request.cache)
    assert run.keys == [request.key]
    assert run.key_texts == [m.text(request.key)]
    assert run.id_fields == [m.id_field(request.request_id)]


@pytest.mark.parametrize(
    "payload",
    [
        compact(),
        compact(key=None),
        compact(key="ß"),
        compact(key="\x7f"),
        compact(key='"'),
        compact(key="\\"),
        compact(key="k", request_id=None),
        compact(key="k", request_id=-1),
        compact(key="k", request_id=1.5),
        compact(key="k", request_id=2**64),
        compact(key="k", request_id="x" * 1_025),
        compact(key="k", more=1),
        compact(key="k", request_id=1, more=1),
        compact(key="k", **SCOPE),
        compact(namespace="n", tenant_id="t", cache="c", key="k"),
        compact(tenant_id="t", key="k"),
        compact(tenant_id="t", namespace="n", key="k"),
        compact(**SCOPE),
        compact(**SCOPE, request_id=1),
        compact(tenant_id=None, namespace=None, cache=None, key="k"),
        b'{"key":"k","type":"cache_get"}',
        b'{"type":"cache_get","key":"k","key":"l"}',
        b'{"type":"cache_get","request_id":1,"key":"k","request_id":2}',
        b'{"type":"cache_get","key":"k","request_id":01}',
        b'{"type":"cache_get","key":"k","request_id":}',
        b'{"type":"cache_get", "key":"k"}',
        b'{"type":"cache_get","key":"k"} ',
        b'{"type":"cache_get","key":"k"',
        b'{"type":"cache_get","key":"k',
        b'{"type":"cache_get","key":"a\nb"}',
        b'{"type":"cache_get","key":k}',
        b'{"type":"cache_get","key":"k"}}',
        b'{"type":"cache_put","key":"k"}',
        b'{"type":"cache_get",',
        b"",
    ],
)
def test_anything_else_is_left_to_the_library(payload: bytes) -> None:
    assert not is_plain(payload)
    data = framed(payload)
    items, _, _ = split_requests(data, 0, len(data))
    expected = m.decode_request(payload)
    (found,) = items
    if isinstance(expected, m.CacheGet):
        assert isinstance(found, GetRun)
        assert found.keys == [expected.key]
        assert found.id_fields == [m.id_field(expected.request_id)]
        assert found.tenant == expected.tenant_id
    else:
        assert found == expected


NAMES = st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x100), max_size=6)
IDS = st.none() | NAMES | st.integers(min_value=-1, max_value=2**64)


@given(NAMES, IDS, st.none() | st.tuples(NAMES, NAMES, NAMES), st.booleans(), st.booleans())
@example("k", 1, ("t", "n", "c"), True, False)
def test_both_readers_agree(
    key: str,
    request_id: str | int | None,
    scope: tuple[str, str, str] | None,
    id_first: bool,
    ascii_only: bool,
) -> None:
    fields: dict[str, object] = dict(zip(SCOPE, scope, strict=True)) if scope else {}
    ids = {} if request_id is None else {"request_id": request_id}
    fields |= {**ids, "key": key} if id_first else {"key": key, **ids}
    fields = {"type": "cache_get", **fields}
    payload = json.dumps(fields, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    expected = m.decode_request(payload)
    data = framed(payload)
    (found,), _, _ = split_requests(data, 0, len(data))
    if not isinstance(expected, m.CacheGet):
        assert found == expected
        return
    assert isinstance(found, GetRun)
    names = (expected.tenant_id, expected.namespace, expected.cache)
    assert (found.tenant, found.namespace, found.cache) == names
    assert found.scope == m.scope_fields(*names)
    assert (found.keys, found.key_texts) == ([expected.key], [m.text(expected.key)])
    assert found.id_fields == [m.id_field(expected.request_id)]


@given(st.binary(max_size=12), st.integers(0, 40), st.integers(0, 12))
def test_any_bytes_within_a_request(cut: bytes, at: int, length: int) -> None:
    """What the quick reader takes, the library takes, with the same meaning."""
    whole = compact(**SCOPE, key="k", request_id=7)
    payload = whole[: at + 40] + cut + whole[at + 40 + length :]
    if is_plain(payload):
        request = m.decode_request(payload)
        assert isinstance(request, m.CacheGet)
        (run,) = runs(payload)
        assert run.keys == [request.key]
        assert run.id_fields == [m.id_field(request.request_id)]
        names = (request.tenant_id, request.namespace, request.cache)
        assert (run.tenant, run.namespace, run.cache) == names


def test_gets_of_one_scope_are_one_run() -> None:
    plain, other = compact(key="k"), compact(**SCOPE, key="k")
    # The library reads the third; it belongs to the run of the second all the same.
    spaced = json.dumps({"type": "cache_get", **SCOPE, "key": "ß"}).encode()
    found = runs(plain, plain, other, spaced, plain)
    assert [len(run.keys) for run in found] == [2, 2, 1]
    assert found[1].key_texts == [b'"k"', '"ß"'.encode()]


def test_a_run_has_an_end() -> None:
    assert [len(run.keys) for run in runs(*[compact(key="k")] * (MAX_RUN_GETS + 1))] == [
        MAX_RUN_GETS,
        1,
    ]


# --- answers, as the rows have them ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "value", "text"),
    [
        (
            compact(key="k", request_id="2"),
            b"hi",
            '{"type":"cache_value","request_id":"2","key":"k","value":"aGk="}',
        ),
        (
            compact(key="ß", request_id="3"),
            None,
            '{"type":"cache_value","request_id":"3","key":"ß","value":null}',
        ),
        (
            compact(**SCOPE, key="k", request_id=4),
            b"",
            '{"type":"cache_value","tenant_id":"t1","namespace":"default","cache":"c","key":"k",'
            '"value":"","request_id":4}',
        ),
        (
            compact(**SCOPE, key="k"),
            None,
            '{"type":"cache_value","tenant_id":"t1","namespace":"default","cache":"c","key":"k",'
            '"value":null}',
        ),
    ],
)
def test_an_answer_has_these_bytes(payload: bytes, value: bytes | None, text: str) -> None:
    (run,) = runs(payload)
    assert encode_values(run, [value]) == framed(text.encode())


def test_answers_to_the_rest_of_a_run() -> None:
    (run,) = runs(*(compact(key=str(number), request_id=number) for number in range(3)))
    first = encode_values(run, [b"a"])
    run.done = 1
    rest = encode_values(run, [None, b"c"])
    assert b'"request_id":0' in first and b'"request_id":1' not in first
    assert rest.index(b'"request_id":1') < rest.index(b'"request_id":2')
    refused = encode_refusals(run, m.text('a "b"'))
    assert refused == m.encode_error(1, 'a "b"') + m.encode_error(2, 'a "b"')
