"""Commands of the pages: executed, or marked with what they need and at least parsed.

A block ``sh`` is executed, in a folder that holds the page's files, unless it stands behind a
comment ``<!-- needs: ... -->``. What such a block has the launcher do is parsed.
"""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.commands.cli import _parser
from tests.programs import run_program

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
OF_OTHERS = ("runbook.md", "runbook-nodes.md", "hangs.md", "benchmark-results.md", "conformance.md")
"""Pages with blocks of another form, or that are written by a program."""
FENCE = re.compile(r"^(.*)\n( *)```(\S*)(.*)\n((?:.*\n)*?)\2```$", re.MULTILINE)


class Block(NamedTuple):
    page: str
    before: str
    language: str
    title: str
    text: str

    @property
    def is_executed(self) -> bool:
        return self.language == "sh" and not re.fullmatch(r" *<!-- needs: .+ -->", self.before)


def read_blocks(page: Path) -> list[Block]:
    return [
        Block(page.relative_to(DOCS).as_posix(), before, language, title.strip(), text)
        for before, _, language, title, text in FENCE.findall(page.read_text("utf-8"))
    ]


PAGES = (*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md"))
BLOCKS = [block for page in PAGES if page.name not in OF_OTHERS for block in read_blocks(page)]
EXECUTED = ["index.md", "tutorials/laptop.md", "tutorials/a-node-dies.md"]


def test_each_block_says_what_it_is_and_commands_say_what_they_need():
    assert [block for block in BLOCKS if not block.language] == []
    assert {block.page for block in BLOCKS if block.is_executed} == set(EXECUTED)
    assert {block.language for block in BLOCKS} <= {
        "sh",
        "bash",
        "text",
        "yaml",
        "python",
        "dockerfile",
    }


def read_commands() -> list[str]:
    lines = [
        line.partition("  #")[0].strip()
        for block in BLOCKS
        if block.language == "sh" and not block.is_executed
        for line in block.text.splitlines()
    ]
    found = (re.search(r"\blauncher (?!node|[A-Z]).*", line) for line in lines)
    return sorted({match[0].partition(" > ")[0] for match in found if match})


def test_the_launcher_takes_each_command():
    refused = []
    for command in read_commands():
        words = shlex.split(re.sub(r"\$\(.*?\)", "0", command))[1:]
        own = words[: words.index("--")] if "--" in words else words
        arguments, unknown = _parser("launcher").parse_known_args(own)
        if unknown or arguments.command != words[0]:
            refused.append(command)
    assert refused == []


@pytest.mark.parametrize("page", [EXECUTED[0], *(page for page in EXECUTED[1:])])
def test_what_a_page_has_one_type_works(page, tmp_path):
    blocks = read_blocks(DOCS / page)
    if page == "tutorials/a-node-dies.md":  # it goes on where the one before has ended
        blocks = [*read_blocks(DOCS / "tutorials/laptop.md")[:1], *blocks]
    for block in blocks:
        if match := re.search(r'title="(.+?)"', block.title):
            (tmp_path / match[1]).write_text(block.text)
    typed = "".join(block.text for block in blocks if block.is_executed)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run_program(
        ["bash", "-euo", "pipefail", "-c", typed],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        timeout=280,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    shown = SHOWN[page]
    assert all(word in done.stdout + done.stderr for word in shown), done.stdout + done.stderr


SHOWN = {
    "index.md": ("rank 1 of 2: the ranks add up to 1", "SUCCEEDED"),
    "tutorials/laptop.md": ("0 errors, 0 warnings", "step 40", "SUCCEEDED"),
    "tutorials/a-node-dies.md": ("world size 1", "world size 2", "exit code 1", "script-error"),
}
