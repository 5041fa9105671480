"""What people install: a wheel and a source distribution, in an environment as pipx makes it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from launcher import __version__
from launcher.api.choose_target import ROOMS
from tests.programs import run_program

ROOT = Path(__file__).parents[1]
BUILD = "import setuptools.build_meta as backend; backend.build_{}('{}')"
COMMIT = "0123456789ab"
SCRIPT = "import os; print('rank', os.environ['RANK'], 'has run')\n"


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


@pytest.fixture(scope="module")
def borrowing(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel alone; all else is borrowed."""
    home = tmp_path_factory.mktemp("borrowing")
    venv.create(home, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin/python")
    done = call(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    assert done.returncode == 0, done.stderr
    # A path that a .pth file names is searched last, and .pth files there are not read: torch is
    # found there, and the editable install of this repository is not.
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


@pytest.mark.parametrize("start", ["fork", pytest.param("fresh", marks=pytest.mark.slow)])
def test_a_script_called_train_py_uses_the_library_under_the_launcher(
    borrowing: Path, tmp_path: Path, start: str
) -> None:
    shutil.copy(ROOT / "examples/train.py", tmp_path)
    job = "name: own\ncommand: [train.py]\nnproc_per_node: 1\ncheckpoint_dir: checkpoints\n"
    (tmp_path / "job.yaml").write_text(f"{job}start: {start}\n")
    run = (borrowing / "bin/launcher", "run", "job.yaml", "--on", "local")
    done = call(*run, "--", "4", cwd=tmp_path)
    assert "steps 0 to 4" in done.stdout, done.stderr
    for name in ("train", "fabric_train"):
        program = f"import {name}; print({name}.__file__)"
        done = call(borrowing / "bin/python", "-c", program, cwd=borrowing)
        assert str(borrowing) in done.stdout


def test_the_wheel_has_every_package_and_says_that_it_is_typed(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    for name in ("launcher", "fabric_train", "train"):
        ours = {str(path.relative_to(ROOT)) for path in (ROOT / name).rglob("*.py")}
        assert ours == {path for path in held if path.startswith(f"{name}/") and path[-3:] == ".py"}
    assert "fabric_train/py.typed" in held


@pytest.mark.slow  # the wheel is tested in every CI
def test_the_source_distribution_builds_into_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    shutil.unpack_archive(sdist, tmp_path)
    (source,) = tmp_path.iterdir()
    assert (source / "CHANGELOG.md").exists()
    again = build("wheel", source, tmp_path / "dist")
    assert again.name == wheel.name == f"fabric_train-{__version__}-py3-none-any.whl"
    ours, theirs = zipfile.ZipFile(wheel), zipfile.ZipFile(again)
    assert sorted(ours.namelist()) == sorted(theirs.namelist())
    assert all(ours.read(name) == theirs.read(name) for name in ours.namelist())


def test_the_wheel_brings_every_target_but_no_torch(installed: Path, tmp_path: Path) -> None:
    python = (installed / "launcher").resolve().with_name("python")
    own = [f"launcher.targets.{name}.target" for name in ROOMS if name != "entered"]
    modules = ", ".join([*own, "launcher.targets.hosts.entered"])
    program = f"import {modules}, kubernetes.client, docker, argcomplete"
    done = call(python, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert call(python, "-c", "import torch", cwd=tmp_path).returncode == 1


def test_the_installed_launcher_tells_its_version_and_completes(
    installed: Path, tmp_path: Path
) -> None:
    told = call(installed / "launcher", "--version", cwd=tmp_path).stdout
    assert told.startswith(f"launcher {__version__} (commit {COMMIT})\ntorch ")
    assert "launcher" in call(installed / "launcher", "completion", "bash", cwd=tmp_path).stdout
    page = call(installed / "launcher", "docs", "tutorials/slurm", cwd=tmp_path).stdout
    assert page == (ROOT / "docs/tutorials/slurm.md").read_text()
    plugin = call(installed / "kubectl-launcher", "--help", cwd=tmp_path)
    assert plugin.stdout.startswith("usage: kubectl launcher")


def test_the_installed_launcher_takes_the_torch_of_the_python_on_the_path(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text("name: own\ncommand: [train.py]\nnproc_per_node: 2\n")
    run = (installed / "launcher", "run", "job.yaml", "--on", "local", "--nnodes", "1")
    scripts = Path(sys.executable).parent
    done = call(*run, cwd=tmp_path, PATH=f"{installed}:{scripts}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "rank 1 has run" in done.stdout
    first = done.stderr.splitlines()[0]
    assert f"{scripts}/python3 with torch {version('torch')} (from PATH, as " in first
    bare = call(*run, cwd=tmp_path, PATH=str(installed))
    assert bare.returncode == 3
    assert "has no torch" in bare.stderr


@pytest.mark.slow  # from the checkout they are typed in every CI
def test_the_commands_of_the_first_page_work_with_what_was_installed(
    installed: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs/index.md").read_text()
    (script,) = re.findall(r'```python title="train.py"\n(.*?)```', page, flags=re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    path = f"{installed}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = call("bash", "-euc", commands, cwd=tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2: the ranks add up to 1" in done.stdout
    found = call("which", "launcher", cwd=tmp_path, PATH=path).stdout.strip()
    assert Path(found).parent == installed


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_changelog_has_the_release() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert any(
        re.fullmatch(rf"{re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", h) for h in headings
    )


def test_make_setup_says_in_the_end_what_to_type_next() -> None:
    dry = run_program(
        ("make", "--dry-run", "--always-make", "setup"), cwd=ROOT, timeout=60, check=True
    )
    assert 'echo "ready: .venv/bin/launcher; try: make run-local' in dry.stdout
