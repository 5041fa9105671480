"""``launcher build`` on a real engine: what is in an image, what is reused, and what is refused."""

import pytest

from launcher.contract import protocol
from launcher.targets.agent_archive import read_agent_version
from launcher.targets.docker.build import find_client
from tests.launcher.targets.docker.test_build import build, folder, put_client, tag

pytestmark = pytest.mark.docker


def test_an_image_has_code_and_requirements_is_pushed_and_runs_on_docker(
    launcher, folder, tag, engine
):
    # A stand-in pushes, as no registry is here that takes gigabytes; the real client builds.
    real = find_client()[0]
    put_client(launcher, f'[ "$1" != push ] || {{ echo "sent $2"; exit 0; }}\nexec {real} "$@"\n')
    done = build(launcher, tag, "--push")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tag}\n"
    assert f"sent {tag}\nlauncher: {tag} was pushed\n" in done.stderr
    assert "torch 2.13.0+cpu, no CUDA" in done.stderr
    assert f"run train.py --image {tag} --code image" in done.stderr
    config = engine.api.inspect_image(tag)["Config"]
    assert config["User"] == "1000:1000"
    assert config["WorkingDir"] == "/launcher/code/inner ö"
    assert config["Labels"][protocol.LABEL_TORCH] == "2.13.0"
    assert config["Labels"][protocol.LABEL_CUDA] == ""
    assert config["Labels"][protocol.LABEL_AGENT] == read_agent_version()

    of_image = ("train.py", "--image", tag, "--code", "image", "--nproc-per-node", "1")
    ran = launcher.well("run", *of_image, "--on", "docker", "--set", "engine=agent")
    said = "small 7 in /launcher/code/inner ö ['out.txt', 'requirements.txt', 'train.py']"
    assert said in ran.stdout
    assert "holds" not in ran.stderr  # it is this launcher's agent

    command = ["sh", "-c", "cat train.py ../.gitignore && touch ../new && ls -A .."]
    listed = engine.containers.run(tag, command, user="54321:54321", entrypoint=[], remove=True)
    assert listed.decode().splitlines()[-3:] == [".gitignore", "inner ö", "new"]
