"""The snippets of the Spark pages run, one after the other, as a reader would type them."""

from typing import TYPE_CHECKING, Any

import pytest
from docs.markdown import ROOT, Document
from kit.live_server import LiveServer
from spark.conftest import address

from penstock.spark.options import ALL_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Document(ROOT / "docs" / "spark.md")
RECIPES = Document(ROOT / "docs" / "spark-recipes.md")


@pytest.mark.parametrize("page", [PAGE, RECIPES], ids=["reference", "recipes"])
def test_snippets(spark: "SparkSession", server: LiveServer, page: Document) -> None:
    names: dict[str, Any] = {"spark": spark}
    blocks = page.of("py")
    assert len(blocks) >= 4
    for block in blocks:
        text = block.text.replace("127.0.0.1:8815", address(server))
        exec(compile(text, block.place, "exec"), names)


def test_every_option_is_on_the_page() -> None:
    words = set(PAGE.code_words())
    assert [name for name in ALL_OPTIONS if name not in words] == []
