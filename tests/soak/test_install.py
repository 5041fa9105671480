"""What people install: a wheel and a source distribution, in an environment as pipx makes it."""

import os
import re
import shutil
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from launcher import __version__
from tests.claims.test_install import build, call, installed, sdist, wheel

ROOT = Path(__file__).parents[2]
SCRIPT = "import os; print('rank', os.environ['RANK'], 'has run')\n"


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


@pytest.mark.parametrize("start", ["fork", "fresh"])
def test_a_script_called_train_py_uses_the_library_under_the_launcher(borrowing, tmp_path, start):
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


def test_the_source_distribution_builds_into_the_same_wheel(sdist, wheel, tmp_path):
    shutil.unpack_archive(sdist, tmp_path)
    (source,) = tmp_path.iterdir()
    assert (source / "CHANGELOG.md").exists()
    again = build("wheel", source, tmp_path / "dist")
    assert again.name == wheel.name == f"fabric_train-{__version__}-py3-none-any.whl"
    ours, theirs = zipfile.ZipFile(wheel), zipfile.ZipFile(again)
    assert sorted(ours.namelist()) == sorted(theirs.namelist())
    assert all(ours.read(name) == theirs.read(name) for name in ours.namelist())


def test_the_installed_launcher_takes_the_torch_of_the_python_on_the_path(installed, tmp_path):
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


def test_the_commands_of_the_first_page_work_with_what_was_installed(installed, tmp_path):
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
