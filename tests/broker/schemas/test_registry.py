"""The registry: versions, the same text again, compatibility, deletion, limits, and what is kept."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from broker.bench import Bench

from penstock.broker.errors import BrokerError, Code
from penstock.broker.options import BrokerOptions
from penstock.broker.schemas.kinds import Limits, compile_definition
from penstock.broker.schemas.registry import Registry

OPTIONS = BrokerOptions()


def registry(bench: Bench, options: BrokerOptions = OPTIONS) -> Registry:
    return Registry(bench.engine.metadata, lambda: options, bench.clock)


def anything(name: str, left: Sequence[int]) -> None:
    return None


def refused(call: Callable[[], object]) -> tuple[Code, str]:
    with pytest.raises(BrokerError) as caught:
        call()
    return caught.value.code, str(caught.value)


def test_the_same_text_is_the_same_version(bench: Bench) -> None:
    known = registry(bench)
    assert known.register("u", "json", b"{}").version == 1
    assert known.register("u", "json", b'{"title":"two"}').version == 2
    assert known.register("u", "json", b"{}").version == 1
    assert known.get("u").version == 2
    assert [one.definition for one in known.schemas("u")] == [b"{}", b'{"title":"two"}']


def test_it_is_there_after_a_restart(bench: Bench) -> None:
    registry(bench).register("a/b", "json", b'{"type":"string"}', "full")
    again = registry(bench)
    assert again.get("a/b").compatibility == "full"
    assert again.validator("a/b").errors(b"1") == [
        "type mismatch at .: expected string, got integer"
    ]


def test_a_number_is_not_given_again_while_the_name_is_there(bench: Bench) -> None:
    known = registry(bench)
    for definition in (b"{}", b"true"):
        known.register("u", "json", definition)
    known.delete("u", 2, anything)
    assert known.get("u").version == 1
    assert known.register("u", "json", b'{"title":"x"}').version == 3
    known.delete("u", 0, anything)
    assert known.names() == [] and len(known) == 0
    assert refused(lambda: known.get("u"))[0] is Code.UNKNOWN_SCHEMA
    assert refused(lambda: known.delete("u", 0, anything))[0] is Code.UNKNOWN_SCHEMA
    # A new name begins anew, and no validator of the old one is left.
    assert known.register("u", "json", b'{"type":"null"}').version == 1
    assert known.validator("u").errors(b"1")


def test_two_that_register_at_the_same_time_get_two_versions(bench: Bench) -> None:
    known = registry(bench)
    definitions = [b'{"title":"%d"}' % number for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda one: known.register("u", "json", one).version, definitions))
    assert sorted(made) == list(range(1, 9))


@pytest.mark.parametrize(
    ("kind", "definition", "words"),
    [
        ("xml", b"", "unsupported schema type: xml"),
        ("json", b"", "no JSON"),
        ("json", b"\xff", "no JSON"),
        ("json", b"[" * 60_000, "no JSON"),
        ("json", b"3", "a JSON Schema is an object, true or false"),
        ("json", b'{"type":"objekt"}', "at type"),
        ("json", b'{"pattern":"(?=a)"}', "pattern"),
        ("json", b'{"$ref":"http://127.0.0.1:9/schema"}', "refers to itself alone"),
        ("json", b'{"$ref":"file:///etc/hostname"}', "refers to itself alone"),
        ("json", b'{"a":' * 40 + b"1" + b"}" * 40, "nested deeper than limits.schema_depth = 32"),
        ("json", b'{"title":"' + b"x" * 65536 + b'"}', "limits.schema_bytes = 65536"),
    ],
)
def test_a_bad_definition_is_refused_in_one_line(
    bench: Bench, kind: str, definition: bytes, words: str
) -> None:
    code, text = refused(lambda: registry(bench).register("u", kind, definition))
    assert code is Code.INVALID_SCHEMA
    assert words in text and "\n" not in text and len(text) < 300


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 250])
def test_a_bad_name_is_refused(bench: Bench, name: str) -> None:
    code, text = refused(lambda: registry(bench).register(name, "json", b"{}"))
    assert code is Code.INVALID_SCHEMA and text.startswith("schema name ")


def test_the_number_of_versions_is_limited(bench: Bench) -> None:
    known = registry(bench, replace(OPTIONS, max_schemas=2))
    known.register("a", "json", b"{}")
    known.register("b", "json", b"{}")
    assert refused(lambda: known.register("c", "json", b"{}")) == (
        Code.LIMIT_REACHED,
        "there are 2 versions of schemas, limits.schemas = 2; delete some, or raise the limit",
    )
    assert known.register("a", "json", b"{}").version == 1


def test_a_missing_library_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    monkeypatch.delitem(sys.modules, "penstock.broker.schemas.json_schema", raising=False)
    code, text = refused(lambda: compile_definition("json", b"{}", Limits(1000, 10)))
    assert code is Code.SCHEMAS_NOT_INSTALLED
    assert text == ("json schemas need the module jsonschema_rs: pip install 'penstock[schemas]'")


def test_another_type_is_another_schema(bench: Bench) -> None:
    known = registry(bench)
    known.register("u", "json", b"{}")
    code, text = refused(lambda: known.register("u", "avro", b'"string"'))
    assert code is Code.INCOMPATIBLE_SCHEMA and text.endswith("version 1 is of type json")
    known.set_compatibility("u", "none")
    assert known.register("u", "avro", b'"string"').kind == "avro"
    assert known.register("u", "proto", b'syntax = "proto3"; message A {}').kind == "protobuf"


# --- compatibility --------------------------------------------------------------------------------

OPEN = b'{"type":"object","properties":{"a":{"type":"integer"}}}'
WIDER = b'{"type":"object","properties":{"a":{"type":"number"}}}'


@pytest.mark.parametrize(
    ("mode", "versions", "fits"),
    [
        ("none", (OPEN, b'{"type":"null"}'), True),
        ("backward", (OPEN, WIDER), True),
        ("backward", (WIDER, OPEN), False),
        ("forward", (WIDER, OPEN), True),
        ("forward", (OPEN, WIDER), False),
        ("full", (OPEN, WIDER), False),
        ("full", (OPEN, OPEN + b" "), True),
    ],
)
def test_the_last_version_counts(
    bench: Bench, mode: str, versions: tuple[bytes, bytes], fits: bool
) -> None:
    known = registry(bench)
    known.register("u", "json", versions[0], mode)
    if fits:
        assert known.register("u", "json", versions[1]).version == 2
        return
    code, text = refused(lambda: known.register("u", "json", versions[1]))
    assert code is Code.INCOMPATIBLE_SCHEMA
    assert text.startswith("schema compatibility check failed: ") and "a: type number" in text


@pytest.mark.parametrize("mode", ["backward", "forward", "full"])
def test_the_transitive_forms_look_at_all_versions(bench: Bench, mode: str) -> None:
    known = registry(bench)
    known.register("u", "json", b'{"type":"integer"}', "none")
    known.register("u", "json", b'{"type":"string"}')
    known.set_compatibility("u", mode)
    assert known.register("u", "json", b'{"type":"string","title":"3"}').version == 3
    known.set_compatibility("u", f"{mode}_transitive")
    code, text = refused(lambda: known.register("u", "json", b'{"type":"string","title":"4"}'))
    assert code is Code.INCOMPATIBLE_SCHEMA and text.endswith("(version 1)")


def test_an_unknown_compatibility_is_refused(bench: Bench) -> None:
    known = registry(bench)
    known.register("u", "json", b"{}")
    code, text = refused(lambda: known.set_compatibility("u", "sideways"))
    assert code is Code.INVALID_SCHEMA and "backward_transitive" in text
    assert refused(lambda: known.set_compatibility("x", "none"))[0] is Code.UNKNOWN_SCHEMA
