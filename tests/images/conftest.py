"""Images are built from a copy of the project, so that no test meddles with the checkout's own."""

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import required
from tests.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
IMAGE = f"fabric-train:test-{os.getpid()}"
PACKER = ("__init__", "targets/__init__", "targets/agent_archive")
Docker = Callable[..., str]
Inspect = Callable[[str], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Project:
    """A copy of what images are built from."""

    root: Path

    def build(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs images/build with these options alone, whatever the caller's environment says."""
        options = ("FLAVOR", "IMAGE", "WHEELHOUSE", "CUDA_VERSION")
        inherited = {name: value for name, value in os.environ.items() if name not in options}
        return run_program(
            (sys.executable, self.root / "images/build", *arguments),
            env=inherited | {"IMAGE": IMAGE} | variables,
            timeout=280,  # wheels of torch are unpacked, beside all other tests
        )

    def log(self, flavor: str = "cpu") -> str:
        return (self.root / f".image/{flavor}.log").read_text(errors="replace")


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def copy_project(root: Path, *, with_wheels: bool) -> Project:
    packed = ("launcher/agent", "launcher/contract")
    for name in ("images", "fabric_train", "train", "jobs", *packed):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    packer = [f"launcher/{name}.py" for name in PACKER]
    for name in ("pyproject.toml", ".dockerignore", *packer):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    if with_wheels and (ROOT / "wheelhouse").is_dir():
        shutil.copytree(ROOT / "wheelhouse", root / "wheelhouse", copy_function=link_or_copy)
    return Project(root=root)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A copy without wheels, to do anything with."""
    return copy_project(tmp_path / "project", with_wheels=False)


@pytest.fixture(scope="session")
def built_project(tmp_path_factory: pytest.TempPathFactory, docker: Docker) -> Iterator[Project]:
    """A copy with the checkout's wheels, from which IMAGE was built."""
    project = copy_project(tmp_path_factory.mktemp("images") / "project", with_wheels=True)
    done = project.build()
    if done.returncode and "docker" not in required():
        pytest.skip(f"docker: no image can be built here: {done.stderr}")
    assert done.returncode == 0, done.stderr + project.log()
    yield project
    with contextlib.suppress(AssertionError):
        docker("image", "rm", "--force", IMAGE)


@pytest.fixture(scope="session")
def image(built_project: Project) -> str:
    """The name of a CPU image made from the checkout."""
    return IMAGE


@pytest.fixture(scope="session")
def docker() -> Docker:
    """Runs docker with these arguments and gives its output; fails the test when it fails."""

    def run(*arguments: str) -> str:
        done = run_program(("docker", *arguments))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture(scope="session")
def inspect(docker: Docker) -> Inspect:
    """All that the engine knows of an image."""

    def read(image: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(docker("image", "inspect", image))
        return found[0]

    return read


@pytest.fixture(scope="session")
def build_script() -> Iterator[ModuleType]:
    """images/build as a module, for its pure parts."""
    loader = importlib.machinery.SourceFileLoader("images_build", str(ROOT / "images/build"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "images"))
        patch.setitem(sys.modules, loader.name, module)
        loader.exec_module(module)
        yield module
