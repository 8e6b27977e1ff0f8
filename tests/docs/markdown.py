"""Reads our documents: fenced blocks, the directives between them, links. Runs nothing.

A directive is a comment of its own line, invisible to a reader: `<!-- server stopped -->`.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\S*)\s*$")
_DIRECTIVE = re.compile(r"^<!-- (.*?) -->$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """`directives` stand between the block before it and this one."""

    path: Path
    line: int
    language: str
    text: str
    directives: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    line: str
    expected: tuple[str, ...]


@dataclass(slots=True)
class Document:
    path: Path
    blocks: list[Block] = field(default_factory=list)
    prose: str = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocks = []
        directives: list[str] = []
        language: str | None = None
        start = 0
        inside: list[str] = []
        prose: list[str] = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            fence = _FENCE.match(line)
            if language is None and fence:
                language, start, inside = fence[1], number, []
            elif language is not None and line == "```":
                text = "\n".join(inside) + "\n"
                self.blocks.append(Block(path, start, language, text, tuple(directives)))
                directives, language = [], None
            elif language is not None:
                inside.append(line)
            elif directive := _DIRECTIVE.match(line):
                directives.append(directive[1])
            else:
                prose.append(line)
        assert language is None, f"{path}:{start}: the block does not end"
        assert not directives, f"{path}: a directive without a block behind it: {directives}"
        self.prose = "\n".join(prose)

    def of(self, language: str) -> list[Block]:
        return [block for block in self.blocks if block.language == language]

    def links(self) -> list[str]:
        """Targets within the project, without their anchors."""
        found = [target.partition("#")[0] for target in _LINK.findall(self.prose)]
        return [target for target in found if target and "://" not in target]

    def code_words(self) -> list[str]:
        return _CODE.findall(self.prose)


def documents() -> list[Document]:
    """What a user reads, and what is run."""
    return [Document(ROOT / "README.md"), *map(Document, sorted((ROOT / "docs").glob("*.md")))]


def commands(block: Block) -> list[Command]:
    """`$ command` and the output behind it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            assert found, f"{block.place}: output before the first command"
            found[-1][1].append(line)
    assert found, f"{block.place}: no command"
    return [Command(line, tuple(expected)) for line, expected in found]


def matches(expected: tuple[str, ...], output: str) -> bool:
    """`...` alone in a line stands for any lines, within a line for any text.

    Two blanks or more match any number of them: the columns of a table move with what is in them.
    """
    pattern = ""
    for line in expected:
        if line == "...":
            pattern += r"(?:.*\n)*?"
            continue
        parts = [re.sub(r"(\\ ){2,}", r" {2,}", re.escape(part)) for part in line.split("...")]
        pattern += ".*?".join(parts) + r"[ \t]*\n"
    return re.fullmatch(pattern, output) is not None
