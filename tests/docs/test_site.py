"""The documentation as a site: built strictly, whole without a network, fresh, and short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import render_all
from docs.reference_pages import GENERATED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LONGEST = 300
LOADED = re.compile(
    r"""<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"' >]+)"""
)
"""Where Chromium looks for its own updates, whatever page it shows."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder)
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.site
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    loaded = {url for page in pages for url in LOADED.findall(page.read_text("utf-8"))}
    assert loaded == set()
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", style.read_text("utf-8")), style
    assert not list(site.rglob("*.py"))


def test_what_is_made_from_the_sources_is_as_they_are():
    stale = [path for path, text in render_all().items() if path.read_text("utf-8") != text]
    assert stale == [], "run make docs"


def test_no_page_that_people_write_is_longer_than_a_few_screens():
    lengths = {
        page.name: text.count("\n")
        for page in DOCS.glob("**/*.md")
        if "<!-- keys -->" not in (text := page.read_text("utf-8"))
        and GENERATED not in text
        and "<!-- results: begin -->" not in text
    }
    assert {name for name, lines in lengths.items() if lines > LONGEST} == set()
