"""ARCHITECTURE.md and CONTRIBUTING.md name files and functions that exist.

README.md and docs/ have their own tests, see test_documents.py.
"""

import ast
import re
from pathlib import Path

import pytest
from docs.markdown import ROOT

SOURCE = ROOT / "src" / "penstock"
# `log/engine.py`, `tests/server/toy/`; not `/metrics/partitions`, nor names with a placeholder.
PATH = re.compile(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|md|txt))?|[a-z_0-9/]+\.py)`")
# A row of the table that follows a publish.
STEP = re.compile(r"^\| `([a-z_/]+\.py)` \|(.*)\|$", re.MULTILINE)
MOST_FILES = 8


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_exists(document: str) -> None:
    paths = set(PATH.findall((ROOT / document).read_text()))
    assert paths
    assert [one for one in paths if not any((base / one).exists() for base in (ROOT, SOURCE))] == []


def test_eight_files_show_the_path_of_a_publish() -> None:
    steps = STEP.findall((ROOT / "ARCHITECTURE.md").read_text())
    assert 0 < len(steps) <= MOST_FILES
    for path, text in steps:
        named = set(re.findall(r"`(\w+)`", text))
        # System calls stand in the table too.
        assert named - {"pwritev", "fdatasync"} <= defined(SOURCE / path), path


def defined(path: Path) -> set[str]:
    """The functions and classes of a module, methods too."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}
