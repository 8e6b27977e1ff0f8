"""`penstock pipeline init`: writes a project that runs as it is, from the files of template/."""

from pathlib import Path
from string import Template
from typing import Final

from penstock.spark.pipeline.errors import BrokenProject
from penstock.spark.pipeline.project import PARQUET

TEMPLATE: Final = Path(__file__).with_name("template")
# Files in which $name, $directory, $uri and $format stand for those of the project.
_FILLED: Final = frozenset({".yml", ".md", ".conf"})
ONLY_BRONZE: Final = frozenset(
    {
        "README.md",
        "spark-pipeline.yml",
        "conf/spark-defaults.conf",
        "transformations/bronze.py",
        "transformations/traffic.sql",
    }
)


def write_project(
    directory: Path, *, only_bronze: bool = False, table_format: str = PARQUET
) -> list[Path]:
    """Gives the files, relative to the directory. `only_bronze`: what lands every topic, without the
    example of a shop. Raises BrokenProject when something is there already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BrokenProject(str(directory), "is there already; choose another name")
    root = directory.resolve()
    words = {"name": root.name, "directory": str(root), "uri": root.as_uri()}
    words["format"] = table_format
    written = []
    for source in sorted(TEMPLATE.rglob("*")):
        if not source.is_file() or "__pycache__" in source.parts:
            continue
        relative = source.relative_to(TEMPLATE)
        if only_bronze and str(relative) not in ONLY_BRONZE:
            continue
        text = source.read_text(encoding="utf-8")
        if source.suffix in _FILLED:
            text = Template(text).substitute(words)
        target = directory / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(relative)
    return written
