"""What people install: a wheel and a source distribution, in an environment as pipx makes it."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from launcher import __version__
from launcher.api.choose_target import ROOMS
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
BUILD = "import setuptools.build_meta as backend; backend.build_{}('{}')"
COMMIT = "0123456789ab"


def call(*argv: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run_program(list(map(str, argv)), cwd=cwd, env=kept | env, timeout=240)


def build(kind: str, source: Path, into: Path) -> Path:
    done = call(sys.executable, "-c", BUILD.format(kind, into), cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution of this checkout's files, which git may not know yet."""
    folder = tmp_path_factory.mktemp("sdist")
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
    for name in filter(lambda name: (ROOT / name).is_file(), listed.splitlines()):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    (folder / "source/launcher/COMMIT").write_text(COMMIT)  # as git tells it in a checkout
    return build("sdist", folder / "source", folder / "dist")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout itself."""
    return build("wheel", sdist.parents[1] / "source", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which pipx would link the program of a virtual environment of its own."""
    folder = tmp_path_factory.mktemp("pipx")
    venv.create(folder / "venvs/fabric-train", symlinks=True)
    python = folder / "venvs/fabric-train/bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    done = call(*pip, "install", "--quiet", "--no-compile", wheel, cwd=folder)
    if done.returncode and "No matching distribution found for" in done.stderr:
        give_up = pytest.fail if "index" in os.environ.get("REQUIRE", "") else pytest.skip
        give_up("pip reaches no index that has the dependencies")
    assert done.returncode == 0, done.stderr
    (folder / "bin").mkdir()
    for name in ("launcher", "kubectl-launcher"):
        (folder / "bin" / name).symlink_to(python.with_name(name))
    return folder / "bin"


def test_the_wheel_has_every_package_and_says_that_it_is_typed(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    for name in ("launcher", "fabric_train", "train"):
        ours = {str(path.relative_to(ROOT)) for path in (ROOT / name).rglob("*.py")}
        assert ours == {path for path in held if path.startswith(f"{name}/") and path[-3:] == ".py"}
    assert "fabric_train/py.typed" in held


def test_the_wheel_brings_every_target_but_no_torch(installed, tmp_path):
    python = (installed / "launcher").resolve().with_name("python")
    own = [f"launcher.targets.{name}.target" for name in ROOMS]
    modules = ", ".join([*own, "launcher.targets.held.target", "launcher.targets.hosts.held"])
    program = f"import {modules}, kubernetes.client, docker, argcomplete"
    done = call(python, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert call(python, "-c", "import torch", cwd=tmp_path).returncode == 1


def test_the_installed_launcher_tells_its_version_and_completes(installed, tmp_path):
    told = call(installed / "launcher", "--version", cwd=tmp_path).stdout
    assert told.startswith(f"launcher {__version__} (commit {COMMIT})\ntorch ")
    assert "launcher" in call(installed / "launcher", "completion", "bash", cwd=tmp_path).stdout
    page = call(installed / "launcher", "docs", "tutorials/slurm", cwd=tmp_path).stdout
    assert page == (ROOT / "docs/tutorials/slurm.md").read_text()
    plugin = call(installed / "kubectl-launcher", "--help", cwd=tmp_path)
    assert plugin.stdout.startswith("usage: kubectl launcher")


def test_the_citation_names_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_changelog_has_the_release():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert any(
        re.fullmatch(rf"{re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", h) for h in headings
    )


def test_make_setup_says_in_the_end_what_to_type_next():
    dry = run_program(
        ("make", "--dry-run", "--always-make", "setup"), cwd=ROOT, timeout=60, check=True
    )
    assert 'echo "ready: .venv/bin/launcher; try: make run-local' in dry.stdout
