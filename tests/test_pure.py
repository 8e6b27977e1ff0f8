"""PENSTOCK_PURE and build_info(): what is loaded, compiled or source, and that we are told."""

import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock import BuildInfo, build_info
from penstock._build import hot_modules, is_compiled
from penstock._pure import SourceFinder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A directory with one module both compiled and as source, and a package."""
    (tmp_path / "hot.py").write_text("")
    (tmp_path / f"hot{EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("")
    return tmp_path


def test_the_finder_takes_the_source_where_python_takes_the_compiled_file(package: Path) -> None:
    path = [str(package)]
    plain = PathFinder.find_spec("penstock.hot", path)
    ours = SourceFinder("penstock").find_spec("penstock.hot", path)
    assert plain is not None and plain.origin == str(package / f"hot{EXTENSION_SUFFIXES[0]}")
    assert ours is not None and ours.origin == str(package / "hot.py")


@pytest.mark.parametrize("name", ["penstock.room", "penstock.missing", "penstocks.hot", "hot"])
def test_the_finder_leaves_everything_else_alone(package: Path, name: str) -> None:
    assert SourceFinder("penstock").find_spec(name, [str(package)]) is None


def test_top_level_modules_are_not_ours() -> None:
    assert SourceFinder("penstock").find_spec("penstock.hot", None) is None


def fresh_build_info(**variables: str) -> dict[str, object]:
    code = (
        "import json, penstock, importlib\n"
        "from penstock._build import hot_modules\n"
        "loaded = [importlib.import_module(name).__file__ for name in hot_modules()]\n"
        "info = penstock.build_info()\n"
        "print(json.dumps({'kind': info.kind, 'loaded': loaded}))"
    )
    source = str(Path(__file__).parent.parent / "src")
    environment = {**os.environ, "PYTHONPATH": source, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        env=environment,
        timeout=HANG_S,
    )
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_the_switch_loads_every_hot_module_from_its_source() -> None:
    answer = fresh_build_info(PENSTOCK_PURE="1")
    assert answer["kind"] == "pure"
    assert isinstance(answer["loaded"], list)
    assert all(str(path).endswith(".py") for path in answer["loaded"])
    assert len(answer["loaded"]) == len(hot_modules())


def test_without_the_switch_a_new_process_loads_what_lies_there() -> None:
    answer = fresh_build_info(PENSTOCK_PURE="0")
    assert isinstance(answer["loaded"], list)
    compiled = [str(path).endswith(".so") for path in answer["loaded"]]
    assert answer["kind"] == ("compiled" if all(compiled) and compiled else "pure")


def test_build_info_names_each_hot_module_once() -> None:
    info = build_info()
    assert sorted(info.compiled + info.pure) == sorted(hot_modules())
    assert set(info.compiled) == {name for name in hot_modules() if is_compiled(name)}


@pytest.mark.parametrize(
    ("compiled", "pure", "kind"),
    [((), (), "pure"), (("a",), (), "compiled"), ((), ("a",), "pure"), (("a",), ("b",), "mixed")],
)
def test_kind(compiled: tuple[str, ...], pure: tuple[str, ...], kind: str) -> None:
    assert BuildInfo("0", "3", compiled, pure).kind == kind


def test_a_listed_module_that_is_missing_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"penstock\.no_such"):
        is_compiled("penstock.no_such")
