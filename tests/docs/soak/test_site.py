"""The documentation as a site: built strictly, whole without a network, fresh, and short."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_site import site
from tests.programs import run_program

ROOT = Path(__file__).parents[3]
OF_THE_BROWSER = {
    "accounts.google.com",
    "clients2.google.com",
    "redirector.gvt1.com",
    "update.googleapis.com",
}


@pytest.mark.site
def test_a_broken_link_or_anchor_fails_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    own = f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: docs\nsite_dir: site\nnav: [index.md]\n"
    (tmp_path / "mkdocs.yml").write_text(own)
    codes = []
    for link in ("index.md#here", "index.md#gone", "gone.md", "gone.svg"):
        (tmp_path / "docs/index.md").write_text(f"# Page\n\n## Here\n\n[word]({link})\n")
        build = (sys.executable, "-m", "mkdocs", "build", "--strict")
        codes.append(subprocess.run(build, cwd=tmp_path, capture_output=True).returncode)
    assert codes == [0, 1, 1, 1]


@pytest.mark.site
def test_no_request_leaves_the_machine(site, tmp_path):
    browser = shutil.which("chromium") or pytest.skip("no program chromium")
    for page in ("index.html", "commands.html", "tutorials/two-machines.html"):
        log = tmp_path / "log.json"
        options = (f"--user-data-dir={tmp_path}/user", f"--log-net-log={log}", "--dump-dom")
        started = (browser, "--headless=new", "--no-sandbox", *options, f"file://{site}/{page}")
        # What the browser itself asks for finds no name.
        done = run_program((*started, "--host-resolver-rules=MAP * ~NOTFOUND"), timeout=120)
        assert "</html>" in done.stdout
        asked = set(re.findall(r'"url":"https?://([^/"]*)', log.read_text()))
        assert asked <= OF_THE_BROWSER
