"""What a build reuses, and what it refuses."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker


def layers(inspected: dict) -> list[str]:
    return inspected["RootFS"]["Layers"]


def append(file: Path, line: str) -> str:
    """Adds a line and gives back the file as it was."""
    before = file.read_text()
    file.write_text(f"{before}{line}\n")
    return before


def test_a_build_without_a_change_gives_the_same_image(built_project, image, inspect):
    before = inspect(image)["Id"]
    done = built_project.build()
    assert "is up to date" in done.stdout
    assert inspect(image)["Id"] == before


def test_a_change_elsewhere_in_pyproject_changes_no_layer(built_project, image, inspect):
    before = layers(inspect(image))
    pyproject = built_project.root / "pyproject.toml"
    original = append(pyproject, "[tool.another]\nkey = 1")
    try:
        built_project.build()
        assert layers(inspect(image)) == before
    finally:
        pyproject.write_text(original)


def test_wheels_for_another_python_fail_the_build_with_what_to_do(project, image, inspect):
    wheelhouse = project.root / "wheelhouse"
    wheelhouse.mkdir()
    wheel = "torch-2.13.0-cp39-cp39-manylinux_2_28_x86_64.whl"
    (wheelhouse / wheel).touch()
    base = inspect(image)["Config"]["Labels"]["org.opencontainers.image.base.name"]
    done = project.build(BASE_IMAGE=base, IMAGE=f"{image}-unfit")
    assert done.returncode == 1
    what, where, fix = done.stderr.splitlines()
    assert re.search(r"is for another Python: the image's 3\.\d+\.\d+ \(cp3\d+-.*\)", what)
    assert wheel in what
    assert where == "  where: .image/cpu.log"
    assert "make wheelhouse" in fix
    assert "BASE_IMAGE" in fix
