"""The image as it runs: its user, its labels, its processes, what is in it."""

import json
from typing import Any

import pytest

from launcher import __version__
from launcher.contract.protocol import LABEL_AGENT, LABEL_CUDA, LABEL_TORCH
from launcher.targets.agent_archive import read_agent_version

pytestmark = pytest.mark.docker
FACTS = """
import getpass, json, os, torch
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda or "",
    "user": getpass.getuser(),
    "compiled": os.path.exists(torch.__spec__.cached),
}))
"""


@pytest.fixture(scope="module")
def facts(image, docker) -> dict[str, Any]:
    """What Python in the image says, run by a user that exists nowhere."""
    found: dict[str, Any] = json.loads(
        docker("run", "--rm", "--user", "12345:12345", image, "python", "-c", FACTS)
    )
    return found


def test_a_user_that_exists_nowhere_writes_to_a_mount_and_to_the_working_folder(
    image, docker, tmp_path
):
    tmp_path.chmod(0o777)
    options = ("--user", "12345:12345", "--volume", f"{tmp_path}:/mount")
    docker("run", "--rm", *options, image, "touch", "/mount/file", "here", "/tmp/there")
    assert (tmp_path / "file").stat().st_uid == 12345


def test_labels_and_user_are_what_python_in_the_image_says(image, docker, inspect, facts):
    config = inspect(image)["Config"]
    labels, (user, _, group) = config["Labels"], config["User"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert labels["org.opencontainers.image.version"] == __version__
    # What a user that exists nowhere needs: a name, and bytecode that it could not write.
    assert facts["user"]
    assert facts["compiled"]
    in_any_folder = ("run", "--rm", "--workdir", "/", image, "sh", "-c")
    found = docker(*in_any_folder, "python -c 'import train' && command -v torchrun && id -u")
    assert found.splitlines() == ["/opt/venv/bin/torchrun", user]
    assert labels[LABEL_TORCH] == facts["torch"].partition("+")[0]
    assert labels[LABEL_CUDA] == facts["cuda"]


def test_the_node_agent_is_in_it_and_both_label_and_file_say_which(image, docker, inspect):
    label = inspect(image)["Config"]["Labels"][LABEL_AGENT]
    assert label == read_agent_version()
    assert docker("run", "--rm", image, "cat", "/launcher/agent.version") == label
    said = docker("run", "--rm", image, "sh", "-c", "python /launcher/agent.pyz 2>&1; true")
    assert "no node plan was given" in said


@pytest.mark.parametrize(
    ("options", "init"),
    [
        pytest.param((), "tini", id="its own entry point"),
        pytest.param(("--init", "--entrypoint", ""), "docker-init", id="the launcher's way"),
    ],
)
def test_one_init_process_runs_the_command(image, docker, options, init):
    script = "cat /proc/1/comm; for p in /proc/[0-9]*; do cat $p/comm; done 2>/dev/null"
    run = ("run", "--rm", *options, image, "sh", "-c", f"{script}; :")
    first, *names = docker(*run).splitlines()
    assert first == init
    assert sorted(set(names) - {"cat"}) == sorted([init, "sh"])
    assert names.count(init) == 1


def test_the_code_and_nothing_else_of_the_project_is_in_it(image, docker):
    code = docker("run", "--rm", image, "sh", "-c", "ls -A").split()
    assert code == ["fabric_train", "jobs", "train"]
    found = docker("run", "--rm", "--user", "0", image, "find", "/", "-xdev", "-name", "*.whl")
    outside_of_python = [line for line in found.splitlines() if "python-wheels" not in line]
    assert [line for line in outside_of_python if "ensurepip" not in line] == []


def test_what_the_smoke_test_saw_is_kept_in_the_image(image, docker):
    kept = docker("run", "--rm", image, "cat", "/usr/local/share/fabric-train/smoke.json")
    smoke = json.loads(kept)
    assert {"python", "torch", "cuda", "lightning.fabric", "sklearn"} <= set(smoke)
