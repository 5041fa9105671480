"""docs/benchmark-results.md: a section for each benchmark, which a later one replaces."""

from __future__ import annotations

import re
from collections.abc import Sequence

BEGIN = "<!-- results: begin -->"
END = "<!-- results: end -->"
SECTION = "<!-- benchmark: {} -->"
_SECTIONS = re.compile(r"^<!-- benchmark: (\S+) -->$", re.MULTILINE)


def replace_section(page: str, name: str, section: str, order: Sequence[str]) -> str:
    """The page with the section of one benchmark replaced, or put where ``order`` has it.

    Raises ValueError for a page without the markers around the results.
    """
    before, begin, rest = page.partition(BEGIN)
    results, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {END if begin else BEGIN}")
    _, *parts = _SECTIONS.split(results)
    sections = {key: text.strip() for key, text in zip(parts[::2], parts[1::2], strict=True)}
    sections[name] = section
    known = [key for key in order if key in sections]
    others = [key for key in sections if key not in order]
    text = "\n\n".join(f"{SECTION.format(key)}\n{sections[key]}" for key in (*known, *others))
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
