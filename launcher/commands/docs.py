"""``docs``: a page of the documentation, a section, or the job file's JSON Schema."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from launcher.contract import typed
from launcher.contract.causes import Cause
from launcher.contract.errors import InputError, closest
from launcher.job.schema import render_schema

INSTALLED = Path(__file__).parent / "pages"
PAGES = INSTALLED if INSTALLED.is_dir() else Path(__file__).parents[2] / "docs"
"""A wheel holds the pages (setup.py puts them there); in a checkout they are in ``docs/``."""
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def docs(arguments: argparse.Namespace) -> tuple[str, int]:
    """The text of the page or section, or a list of all pages; and the exit code."""
    if arguments.page == "schema":
        return render_schema(), 0
    pages = {
        path.relative_to(PAGES).with_suffix("").as_posix(): path.read_text("utf-8")
        for path in sorted(PAGES.rglob("*.md"))
    }
    if arguments.page is None:
        width = max(map(len, pages))
        titles = (text.partition("\n")[0].lstrip("# ") for text in pages.values())
        return "".join(f"{n:{width}}  {t}\n" for n, t in zip(pages, titles, strict=True)), 0
    without_folder = {name.rpartition("/")[2]: text for name, text in pages.items()}
    sections = {name: part for text in pages.values() for name, part in _sections(text)}
    causes = {str(cause): _tell_cause(cause) for cause in Cause}
    named = causes | without_folder | sections | pages
    if arguments.page in named:
        return named[arguments.page], 0
    near = closest(arguments.page, named)
    fix = f"did you mean {near}? " if near else ""
    raise InputError(
        f"{arguments.page}: no such page or section", f"{fix}{typed.command('docs')} lists them"
    )


def _tell_cause(cause: Cause) -> str:
    """What the table of causes has, for one without a section in a runbook."""
    end, finer = cause.run_end, [each for each in Cause if each.of is cause and each is not cause]
    lines = [f"### {cause}", "", cause.meaning or cause.fix, ""]
    lines += [f"A run ends by it as {end.state}, with exit code {end.exit_code:d}."]
    if cause.of is not cause:
        lines[-1] = f"It stands for {cause.of}: {end.state}, exit code {end.exit_code:d}."
    if cause.meaning and cause.fix:
        lines.append(f"What helps in most cases: {cause.fix}.")
    if finer:
        lines.append(f"`launcher why` tells which it was: {', '.join(finer)}.")
    lines.append(f"All causes: {typed.command('docs', 'exit-codes')}.")
    return "\n".join(lines) + "\n"


def _sections(page: str) -> list[tuple[str, str]]:
    """Each section below the title, with its anchor, up to the next heading of its level."""
    sections = []
    text = re.sub(r"^```.*?^```$", lambda m: m[0].replace("\n#", "\n\0"), page, flags=re.M | re.S)
    for heading in list(HEADING.finditer(text))[1:]:
        depth = heading[0].index(" ")
        anchor = re.sub(r"[^\w\s-]", "", heading[1].lower()).replace(" ", "-")
        end = re.compile(rf"^#{{1,{depth}}} ", re.MULTILINE).search(text, heading.end())
        part = text[heading.start() : end.start() if end else None]
        sections.append((anchor, part.replace("\0", "#").rstrip() + "\n"))
    return sections
