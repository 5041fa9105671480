"""``launcher build`` on a real engine: what is in an image, what is reused, and what is refused."""

import io
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.contract import protocol
from tests.launcher.targets.docker.test_build import BASE, SCRIPT, build, folder, tag

pytestmark = pytest.mark.docker
BASES = {
    "no-python": "RUN rm -f /usr/bin/python3*\n",
    "managed": "RUN mkdir /usr/lib/python3/dist-packages/torch && printf '%s\\n' "
    "'class version: cuda = None' '__version__ = \"9.9.9+stand.in\"' "
    ">/usr/lib/python3/dist-packages/torch/__init__.py\n",
}
"""What a base lacks, or has, that is made of our image without its environment."""


@pytest.fixture
def base(engine: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"fabric-train-tests:base-{request.param}"
    lines = f"FROM {BASE}\nUSER root\nRUN rm -rf /opt/venv\n{BASES[request.param]}"
    engine.images.build(fileobj=io.BytesIO(lines.encode()), tag=name, rm=True)
    yield name
    engine.images.remove(name, force=True)


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


@pytest.mark.parametrize("base", ["no-python"], indirect=True)
def test_a_base_without_python_is_told_with_the_fix(launcher, folder, tag, base):
    error, hint = build(launcher, tag, base=base).stderr.splitlines()[-2:]
    assert error == f"error: {tag} was not built: the base image has no python3 on its PATH"
    assert hint.startswith("  fix: --base with Python")


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
