"""What is printed for Docker does what the SDK does: compared by ``docker inspect``, and run."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.docker.render import DockerArtifact, render_docker
from launcher.targets.docker_options import ContainerSettings
from tests.launcher.docker_place import Place
from tests.launcher.runner import hear_hangups

pytestmark = pytest.mark.docker
CLIENTS = sorted(
    {
        str(client)
        for folder in os.get_exec_path()
        if (client := Path(folder, "docker").resolve()).is_file()
    }
)
"""Every docker command on this machine: they differ in version, and must not in effect."""
EACH_TIME_ANEW = (
    *("Id", "Created", "State", "LogPath", "ResolvConfPath", "HostnamePath", "HostsPath"),
    "GraphDriver",
)


def without(mapping: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}


def plain(value: Any) -> Any:
    """The same with empty lists and mappings as None: clients differ in how they leave out."""
    if isinstance(value, dict):
        value = {key: plain(item) for key, item in value.items()}
    elif isinstance(value, list):
        value = [plain(item) for item in value]
    return None if value in ({}, []) else value


def inspect(place: Place, artifact: DockerArtifact) -> list[dict[str, Any]]:
    """All that the engine says of the network and the containers, but ids, times and addresses."""
    network = without(place.api.inspect_network(artifact.network), "Id", "Created", "Containers")
    network["IPAM"] = without(network["IPAM"], "Config")
    found = [network]
    for container in artifact.containers:
        inspected = without(place.api.inspect_container(container.name), *EACH_TIME_ANEW)
        networks = inspected.pop("NetworkSettings")["Networks"]
        inspected["networks"] = {
            name: {key: joined[key] for key in ("IPAMConfig", "Links", "DriverOpts")}
            for name, joined in networks.items()
        }
        inspected["HostConfig"] = without(inspected["HostConfig"], "ContainerIDFile")
        # The engine lists mounts, and the command line passes variables, in random order.
        inspected["Mounts"].sort(key=lambda mount: str(mount["Destination"]))
        inspected["Config"]["Env"].sort()
        found.append(inspected)
    return [plain(one) for one in found]


def printed_commands(artifact: DockerArtifact) -> str:
    blocks = artifact.shell().split("\n\n")
    return "\n".join(b for b in blocks if "docker network create" in b or "docker run" in b)


def run_printed(artifact: DockerArtifact, client: str) -> subprocess.CompletedProcess[str]:
    script = f'docker() {{ {client} "$@"; }}\n{printed_commands(artifact)}'
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)


@pytest.fixture
def rich_plan(place: Place, monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    """A plan that uses every option that this engine can start."""
    monkeypatch.setenv("API_TOKEN", "it's a s3cret")
    folder = place.folder / 'a "folder", with a comma'
    folder.mkdir()
    plan = place.plan(
        "sleep 60",
        nnodes=2,
        env={"AWKWARD": "a 'b' \"c\" $HOME `id` \\ \n* é"},
        secrets=["API_TOKEN"],
        mounts=[{"source": str(folder), "target": "/data", "read_only": True}],
        workdir="/data",
        resources={"cpus": 0.5, "memory": "256Mi", "shm": "100Mi"},
        stop_grace_s=7,
        docker={"labels": {"team": "a, b"}, "extra_hosts": {"data.internal": "10.0.0.7"}},
    )
    return replace(plan, own=replace(ContainerSettings.of(plan), runtime="runc"))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_printed_container_equals_a_submitted_one(place, rich_plan, client):
    artifact = place.target.render(rich_plan)
    place.target.submit(rich_plan)
    submitted = inspect(place, artifact)
    place.target.stop(rich_plan.run_id, 0)
    done = run_printed(artifact, client)
    assert done.returncode == 0, done.stderr
    assert inspect(place, artifact) == submitted


@pytest.mark.parametrize("client", CLIENTS[:1])
def test_a_printed_container_with_gpus_and_rdma_equals_a_submitted_one(place, client):
    # Created but not started: the engine need not have the devices.
    plan = place.plan("true", nnodes=2)
    nodes = tuple(replace(n, device_ids=(f"{2 * n.node_index}", "7")) for n in plan.nodes)
    plan = replace(
        plan, nodes=nodes, resources=replace(plan.resources, accelerator="cuda", rdma=True)
    )
    artifact = render_docker(plan)
    for folder in artifact.folders:
        Path(folder).mkdir(parents=True)
    place.api.create_network(**artifact.network_kwargs())
    for container in artifact.containers:
        host_config = place.api.create_host_config(**container.host_config_kwargs())
        place.api.create_container(host_config=host_config, **container.create_kwargs({}))
    submitted = inspect(place, artifact)
    place.target.stop(plan.run_id, 0)
    run_printed(artifact, client)
    assert inspect(place, artifact) == submitted
    assert submitted[1]["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["0", "7"]


def start_script(plan: LaunchPlan, folder: Path) -> subprocess.Popen[str]:
    script = folder / "artifact.sh"
    script.write_text(render_docker(plan).shell())
    return subprocess.Popen(
        ["sh", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=hear_hangups,
    )


def test_the_script_runs_by_hand_shows_and_keeps_the_output_and_leaves_nothing(place):
    for code in (0, 1):
        plan = place.plan(
            f"echo this is node $LAUNCHER_NODE_INDEX; exit $(({code} * LAUNCHER_NODE_INDEX))",
            nnodes=2,
        )
        with start_script(plan, place.folder) as script:
            shown, _ = script.communicate(timeout=60)
        assert script.returncode == code, shown
        for index in (0, 1):
            assert f"this is node {index}\n" in shown
            assert place.console(plan, index) == f"this is node {index}\n".encode()
        assert place.held(plan.run_id) == []
