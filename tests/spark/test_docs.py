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
TYPED = Document(ROOT / "docs" / "spark-typed.md")


@pytest.mark.parametrize("page", [PAGE, RECIPES, TYPED], ids=["reference", "recipes", "typed"])
def test_snippets(spark: "SparkSession", server: LiveServer, page: Document) -> None:
    names: dict[str, Any] = {"spark": spark}
    for definition in page.of("json"):
        server.server.broker.schemas.registry.register("basket", "json", definition.text.encode())
    blocks = page.of("py")
    assert blocks
    for block in blocks:
        text = block.text.replace("127.0.0.1:8815", address(server))
        exec(compile(text, block.place, "exec"), names)


def test_every_option_is_on_the_page() -> None:
    words = set(PAGE.code_words())
    assert [name for name in ALL_OPTIONS if name not in words] == []
