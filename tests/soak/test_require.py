"""Tests of engines that are absent: skipped by name, or failed where REQUIRE names the engine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import run_program

ROOT = Path(__file__).parents[2]
NEEDS_DOCKER = "tests/launcher/targets/docker/test_target.py"


@pytest.mark.parametrize(
    ("require", "code", "words"),
    [("gpu", 0, "SKIPPED"), ("gpu, docker", 1, "docker is required")],
)
def test_an_engine_that_is_absent_skips_its_tests_by_name_unless_it_is_required(
    require, code, words
):
    done = run_program(
        [sys.executable, "-m", "pytest", "-q", NEEDS_DOCKER, "-k", "from_its_submission"],
        cwd=ROOT,
        env={**os.environ, "DOCKER_HOST": "unix:///nonexistent", "REQUIRE": require},
    )
    assert done.returncode == code, done.stdout
    assert words in done.stdout
    assert "no Docker engine" in done.stdout


@pytest.fixture
def empty_image(tmp_path: Path) -> Iterator[str]:
    """A base on which no build gets anywhere."""
    name = "fabric-train-tests:empty"
    subprocess.run(["tar", "-cf", tmp_path / "empty.tar", "-T", "/dev/null"], check=True)
    subprocess.run(["docker", "import", tmp_path / "empty.tar", name], check=True)
    yield name
    subprocess.run(["docker", "image", "rm", name], check=True, capture_output=True)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("require", "code", "words"), [("", 0, "1 skipped"), ("docker", 1, "1 error")]
)
def test_an_engine_that_cannot_build_an_image_skips_its_tests_with_the_reason_unless_required(
    empty_image, require, code, words
):
    base = {"BASE_IMAGE": empty_image, "REQUIRE": require}
    done = run_program(
        [sys.executable, "-m", "pytest", "-q", "tests/images/claims/test_image.py", "-k", "labels"],
        cwd=ROOT,
        env=os.environ | base,
    )
    assert (done.returncode, words in done.stdout) == (code, True), done.stdout
    assert "error: " in done.stdout, "the reason"
