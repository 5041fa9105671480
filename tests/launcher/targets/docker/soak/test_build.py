"""``launcher build`` on a real engine: what is in an image, what is reused, and what is refused."""

from typing import Any

import pytest

from launcher.contract import protocol
from tests.launcher.targets.docker import test_build
from tests.launcher.targets.docker.test_build import BASE, SCRIPT, build, folder, tag

base, no_torch = test_build.base, test_build.no_torch

pytestmark = pytest.mark.docker


def layers(engine: Any, image: str) -> list[str]:
    found: list[str] = engine.api.inspect_image(image)["RootFS"]["Layers"]
    return found


def test_a_code_change_builds_on_the_layer_of_the_requirements(launcher, folder, tag, engine):
    assert build(launcher, tag).returncode == 0
    before, id = layers(engine, tag), engine.api.inspect_image(tag)["Id"]
    same = build(launcher, tag)
    assert "is up to date" in same.stderr
    assert "small" not in same.stderr.replace("requirements", "")  # pip did not run
    assert engine.api.inspect_image(tag)["Id"] == id

    (folder / "train.py").write_text(SCRIPT + "# changed\n")
    assert build(launcher, tag).returncode == 0
    after, base = layers(engine, tag), layers(engine, BASE)
    kept = len(base) + 2  # the requirements and the agent
    assert after[:kept] == before[:kept]
    assert after[kept] != before[kept]

    (folder / "requirements.txt").write_text("small==1.0\n")
    assert build(launcher, tag).returncode == 0
    assert layers(engine, tag)[len(base)] != before[len(base)]


WITHOUT_PYTHON = ("no-python", "the base image has no python3", "--base with Python")
WITHOUT_TORCH = ("no-torch", "there is no torch for the image's", "--base with torch")
WITHOUT_PIP = ("no-pip", "python3 has no pip, and no venv", "--base with pip")


@pytest.mark.parametrize(
    ("base", "what", "fix"), [WITHOUT_PYTHON, WITHOUT_PIP, WITHOUT_TORCH], indirect=["base"]
)
def test_a_base_without_what_it_needs_is_told_with_the_fix(launcher, folder, tag, base, what, fix):
    done = build(launcher, tag, base=base)
    assert done.returncode == 1, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith(f"error: {tag} was not built: ")
    assert what in error
    assert hint.startswith(f"  fix: {fix}")


@pytest.mark.parametrize("base", ["managed"], indirect=True)
def test_a_python_that_pip_must_not_touch_gets_an_environment_on_top(
    launcher, folder, tag, base, engine
):
    done = build(launcher, tag, base=base)
    assert done.returncode == 0, done.stderr
    words = ["-c", "import small, torch, sys; print(small.NUMBER, torch.__version__, sys.prefix)"]
    said = engine.containers.run(tag, words, entrypoint=["python3"], remove=True).decode()
    assert said == "7 9.9.9+stand.in /opt/launcher-venv\n"
    config = engine.api.inspect_image(tag)["Config"]
    assert config["Labels"][protocol.LABEL_TORCH] == "9.9.9"


@pytest.mark.parametrize(
    ("requirements", "more", "what", "fix"),
    [
        ("torch==2.1.0", True,
         "want another torch than the base image's 2.13.0+cpu: The user requested torch==2.1.0",
         "leave torch out of the requirements"),
        ("absent", True, "No matching distribution found for absent",
         "put it into the folder of --wheelhouse, for the image's Python 3.11"),
        ("--index-url http://127.0.0.1:9/simple\nabsent", False,
         "pip does not reach its index from the build: NewConnectionError", "pip download -r FILE"),
    ],
)  # fmt: skip
def test_requirements_that_cannot_be_had_are_told_with_the_fix(
    launcher, folder, tag, requirements, more, what, fix
):
    (folder / "requirements.txt").write_text(f"{requirements}\n")
    words = ("--wheelhouse", "../wheels") if more else ()
    told = launcher.fails(1, "build", "train.py", "--base", BASE, "--tag", tag, *words)
    error, hint = told.splitlines()[-2:]
    assert what in error
    assert hint.startswith(f"  fix: {fix}")
