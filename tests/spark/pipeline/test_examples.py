"""The page about gold shows what is in examples/shop, which test_gold.py runs."""

import textwrap
from pathlib import Path

import pytest
from docs.markdown import ROOT, Block, Document
from spark.pipeline.test_files import silver_calls

from penstock.spark.pipeline.starter import TEMPLATE

EXAMPLES = ROOT / "examples" / "shop"
PAGE = Document(ROOT / "docs" / "pipeline-gold.md")
README = Document(EXAMPLES / "README.md")


@pytest.mark.parametrize("block", PAGE.of("py") + PAGE.of("sql"), ids=lambda one: one.place)
def test_a_snippet_of_the_page_is_part_of_an_example(block: Block) -> None:
    wanted = textwrap.dedent(block.text).strip().splitlines()
    for path in sorted((EXAMPLES / "transformations").iterdir()):
        lines = path.read_text().splitlines()
        for first in range(len(lines)):
            part = "\n".join(lines[first : first + len(wanted)])
            if textwrap.dedent(part).splitlines() == wanted:
                return
    raise AssertionError(f"{block.place}: no example has this")


@pytest.mark.parametrize("path", [README.path, PAGE.path], ids=lambda one: one.name)
def test_every_example_is_named(path: Path) -> None:
    text = path.read_text()
    for one in sorted((EXAMPLES / "transformations").iterdir()):
        assert one.name in text, one


def test_orders_are_those_of_a_new_project() -> None:
    """The views are in Python instead of SQL; the table is the same."""
    place = Path("transformations", "orders.py")
    example, template = (EXAMPLES / place).read_text(), (TEMPLATE / place).read_text()
    assert silver_calls(example) == silver_calls(template) != []
