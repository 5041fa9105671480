"""The glossary names modules that are there, and each word once."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs/glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| word")
]


def test_each_module_of_the_glossary_is_there():
    named = [path for *_, where in ROWS for path in re.findall(r"`([a-z_*/]+(?:\.py|/))`", where)]
    assert len(named) > 50
    assert [path for path in named if not list((ROOT / "launcher").glob(path))] == []


def test_each_word_has_one_row():
    words = [word for row in ROWS for word in row[0].split(", ")]
    assert len(words) == len({*words})
