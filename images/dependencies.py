"""Lists and installs the train extra of the image; refuses wheels unfit for its Python or CUDA.

Needs only the standard library and pip, because it runs before anything is installed. torch is
installed first and pins its exact build for the rest: otherwise pip may replace a CPU build by the
index's CUDA build of the same version, which is gigabytes larger.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

DEFAULT_WHEELHOUSE = {"cpu": "wheelhouse", "cuda": "wheelhouse-cuda"}
"""By flavor, because of two torch builds in one folder pip always takes the CPU build."""


class DependencyError(Exception):
    """What is wrong; a second line says after ``fix:`` what to type."""


def parse_requirements(pyproject: str) -> tuple[str, ...]:
    """The train extra, torch first; refuses a torch that is not pinned to one version."""
    requirements = tomllib.loads(pyproject)["project"]["optional-dependencies"]["train"]
    torch = [line for line in requirements if line.startswith("torch==")]
    if len(torch) != 1:
        raise DependencyError(
            "pyproject.toml: the train extra does not pin torch to one version\n"
            '  fix: write "torch==X.Y.Z" into it'
        )
    return (torch[0], *(line for line in requirements if line != torch[0]))


def wheel_tags(filename: str) -> set[str]:
    """The ``python-abi-platform`` tags that a wheel's name stands for (PEP 425: dots mean or)."""
    pythons, abis, platforms = filename.removesuffix(".whl").split("-")[-3:]
    return {
        f"{python}-{abi}-{system}"
        for python in pythons.split(".")
        for abi in abis.split(".")
        for system in platforms.split(".")
    }


def find_unfit_wheels(filenames: Iterable[str], accepted_tags: Iterable[str]) -> tuple[str, ...]:
    """All wheels of each distribution that has no wheel with an accepted tag."""
    accepted = set(accepted_tags)
    by_distribution: dict[str, list[str]] = {}
    for filename in sorted(filenames):
        by_distribution.setdefault(filename.split("-")[0].lower(), []).append(filename)
    return tuple(
        filename
        for wheels in by_distribution.values()
        if not any(wheel_tags(wheel) & accepted for wheel in wheels)
        for filename in wheels
    )


def require_fitting_wheels(wheels: Sequence[str]) -> None:
    # A private name: pip's public command prints a table for people.
    from pip._vendor.packaging.tags import sys_tags

    unfit = find_unfit_wheels(wheels, map(str, sys_tags()))
    if not unfit:
        return
    more = f" and {len(unfit) - 3} more" if len(unfit) > 3 else ""
    raise DependencyError(
        f"the wheelhouse is for another Python: the image's {platform.python_version()} "
        f"({next(sys_tags())}) cannot install {', '.join(unfit[:3])}{more}\n"
        "  fix: remove these and run `make wheelhouse` with "
        f"PYTHON=python{sys.version_info.major}.{sys.version_info.minor}, or give a BASE_IMAGE "
        "with the Python they are for"
    )


def pip(*arguments: str) -> None:
    """Runs pip on our stdout and stderr; raises DependencyError if it fails."""
    command = (sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check")
    if subprocess.run((*command, *arguments)).returncode != 0:
        raise DependencyError(
            f"pip {arguments[0]} failed; see its output above\n"
            "  fix: run `make wheelhouse` on a machine that reaches the index, then build again"
        )


def torch_index() -> tuple[str, ...]:
    url = os.environ.get("TORCH_INDEX_URL")
    return ("--index-url", url) if url else ()


def require_torch_build(torch: str, source: Sequence[str], *, cuda: bool) -> str:
    """The exact version that pip would install; refuses a CPU build for CUDA and the reverse.

    Installs nothing, because a wrong build costs minutes and gigabytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        only_look = ("--dry-run", "--ignore-installed", "--no-deps", "--quiet")
        pip("install", *only_look, "--report", str(report), torch, *source)
        metadata = json.loads(report.read_text())["install"][0]["metadata"]
    version: str = metadata["version"]
    if cuda == any("nvidia" in line for line in metadata.get("requires_dist", ())):
        return version
    if cuda:
        raise DependencyError(
            f"torch {version} is a CPU build, but CUDA is asked for\n"
            "  fix: wheels of a CUDA build; or CUDA_VERSION= (empty), if the CPU build is meant"
        )
    raise DependencyError(
        f"torch {version} is a CUDA build of some gigabytes, but no CUDA is asked for\n"
        "  fix: TORCH_INDEX_URL=<PyTorch's index of CPU wheels>, or a wheelhouse of these; or "
        "CUDA_VERSION=<the build's CUDA>, if the CUDA build is meant"
    )


def find_wheels(wheelhouse: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in wheelhouse.glob("*.whl")))


def install(requirements: Sequence[str], wheelhouse: Path) -> None:
    """Installs into this interpreter's environment, from the wheelhouse if it holds any wheel."""
    torch, *rest = requirements
    cuda = bool(os.environ.get("CUDA_VERSION"))
    wheels = find_wheels(wheelhouse)
    source: tuple[str, ...] = ()
    torch_source = torch_index()
    if wheels:
        require_fitting_wheels(wheels)
        source = torch_source = ("--no-index", "--find-links", str(wheelhouse))
    torch = "torch==" + require_torch_build(torch, torch_source, cuda=cuda)
    pip("install", "--root-user-action=ignore", *torch_source, torch)
    pip("install", "--root-user-action=ignore", *source, torch, *rest)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("list", help="print the train extra, torch first")
    verb.add_argument("pyproject", type=Path)
    verb = verbs.add_parser("install", help="install what `list` printed")
    verb.add_argument("requirements", type=Path)
    verb.add_argument("--wheelhouse", type=Path, required=True)
    given = parser.parse_args()
    try:
        if given.verb == "list":
            print("\n".join(parse_requirements(given.pyproject.read_text())))
        else:
            install(given.requirements.read_text().splitlines(), given.wheelhouse)
    except DependencyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
