"""A script of one's own on real hosts, in both runtimes: as it trains on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.places import sh
from tests.hosts.typist import Typist
from tests.launcher.own_script.project import make_project

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]
RUNTIMES = ["python", pytest.param("docker", marks=pytest.mark.docker)]
LARGE_BYTES = 3 << 20
"""More than a run sends besides its code."""
SHORT = """
import os, helper
print(helper.NAME, os.path.basename(os.getcwd()), open("data.txt").readline().strip(), flush=True)
"""


@pytest.fixture
def project(typist: Typist, tmp_path: Path, request: pytest.FixtureRequest) -> Typist:
    """A folder with a script, and large enough that it is seen on the network."""
    if "docker" in request.node.name:
        request.getfixturevalue("four_engines")
    typist.folder = make_project(tmp_path)
    typist.env["LAUNCHER_HOSTS"] = "../hosts.yaml"
    (typist.folder / "large.bin").write_bytes(os.urandom(LARGE_BYTES))
    return typist


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_module_in_a_folder_of_a_repository(project, runtime):
    folder = project.folder
    (folder / "pkg").mkdir()
    (folder / "pkg/train.py").write_text(SHORT)
    sh("git", "init", "-q", folder.parent)
    done = project.well(
        *("run", "-m", "pkg.train", "--nnodes", "2", "--set", f"hosts.runtime={runtime}"),
        *("--nproc-per-node", "1"),
    )
    for node in (0, 1):
        assert f"[{node}/{node}] losses {folder.name} 0.1 0.2 0.5\n" in done.stdout
