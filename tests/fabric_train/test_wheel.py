"""The library as a person has it: installed from a wheel, beside a script called ``train.py``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.training import clean_environment

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train.py"
JOB = "name: own\ncommand: [train.py]\nnproc_per_node: 1\ncheckpoint_dir: checkpoints\n"


def call(*argv: str | Path, cwd: Path) -> str:
    environment = clean_environment()
    del environment["PYTHONPATH"]  # it would lead to this repository
    done = subprocess.run(
        [str(each) for each in argv], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment that holds this project's wheel; all else is borrowed."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("launcher", "fabric_train", "train"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip = (sys.executable, "-m", "pip")
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check")
    call(*pip, "wheel", "--no-build-isolation", *offline, "-w", ".", "./source", cwd=folder)
    home = folder / "venv"
    venv.create(home, symlinks=True)
    (wheel,) = folder.glob("*.whl")
    call(*pip, "--python", home / "bin/python", "install", *offline, wheel, cwd=folder)
    # A path that a .pth file names is searched last, and .pth files there are not read: torch is
    # found there, and the editable install of this repository is not.
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def test_a_script_called_train_py_uses_the_library_under_the_launcher(installed, tmp_path):
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    run = (installed / "bin/launcher", "run", "job.yaml", "--on", "local", "--set")
    assert "steps 0 to 4" in call(*run, "start=fresh", "--", "4", cwd=tmp_path)
    assert "steps 4 to 8" in call(*run, "start=fork", "--", "8", cwd=tmp_path)
    for name in ("train", "fabric_train"):
        program = f"import {name}; print({name}.__file__)"
        assert str(installed) in call(installed / "bin/python", "-c", program, cwd=installed)


def test_the_wheel_has_every_package_and_says_that_it_is_typed(installed):
    (packages,) = installed.glob("lib/python*/site-packages")
    for name in ("launcher", "fabric_train", "train"):
        ours = {path.relative_to(ROOT) for path in (ROOT / name).rglob("*.py")}
        assert ours == {path.relative_to(packages) for path in (packages / name).rglob("*.py")}
    assert (packages / "fabric_train/py.typed").exists()
