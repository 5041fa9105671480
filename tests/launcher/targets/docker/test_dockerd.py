"""The target on an engine that says what no real one can be made to say, or only slowly."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import launcher.targets.docker.target
from launcher.contract import protocol
from launcher.contract.causes import NodeState
from launcher.contract.errors import InputError, TargetError
from launcher.follow.loop import create_run
from launcher.follow.target import LiveRun
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_replacement
from launcher.plan.target_facts import MachineFacts
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import agent_ledger
from launcher.targets.agent_archive import read_agent_version
from launcher.targets.docker.engine import Engine, OwnContainer
from launcher.targets.docker.target import NO_RUNTIME, Consoles, DockerTarget
from launcher.targets.docker_options import ContainerSettings
from tests.launcher.fake_docker import FakeDocker
from tests.waiting import StoppedClock

NVIDIA = {"Runtimes": {"runc": {}, "nvidia": {}}}
CDI = {"DiscoveredDevices": [{"ID": "vendor.com/nic=0"}, {"ID": "nvidia.com/gpu=0"}]}
NIC = {"Runtimes": {"runc": {}}, "DiscoveredDevices": [{"ID": "vendor.com/nic=0"}]}
ON_CPU, MY = {"resources": {"gpus": 0}}, {"image": "my:1"}
UNUSED = f"this machine's GPUs stay unused: {NO_RUNTIME}"


def labels(torch: str, cuda: str, agent: str = read_agent_version()) -> dict[str, Any]:
    names = (protocol.LABEL_TORCH, protocol.LABEL_CUDA, protocol.LABEL_AGENT)
    return {"Labels": dict(zip(names, (torch, cuda, agent), strict=True))}


@pytest.mark.parametrize(
    ("job", "info", "image", "config", "found", "notes"),
    [
        ({}, NVIDIA, "fabric-train:cuda", labels("2.1", "12.1"), ("cuda", "2.1", True), []),
        ({}, CDI, "fabric-train:cuda", labels("2.1", "12.1"), ("cuda", "2.1", True), []),
        ({}, NIC, "fabric-train:cpu", labels("2.1", "12.1"), ("cpu", "2.1", True), [UNUSED]),
        (ON_CPU, {}, "fabric-train:cpu", labels("2.1", ""), ("cpu", "2.1", True), []),
        (ON_CPU, NVIDIA, "fabric-train:cpu", labels("2.1", "12.1"), ("cpu", "2.1", True), []),
        (MY, NVIDIA, "my:1", labels("2.1", ""), ("cpu", "2.1", True), []),
        (MY, NVIDIA, "my:1", labels("", "", ""), ("cuda", None, False), []),
        (MY, NVIDIA, "my:1", {"Labels": None}, ("cuda", None, False), []),
        (MY, NVIDIA, "my:1", None, ("cuda", None, False), []),
        (MY, NVIDIA, "my:1", labels("2.1", "1", "0"), ("cuda", "2.1", False),
         ["image my:1 holds agent 0"]),
    ],
)  # fmt: skip
def test_what_a_run_can_have_is_told_by_the_engine_and_the_images_labels(
    dockerd, tmp_path, monkeypatch, job, info, image, config, found, notes
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    dockerd.info |= info
    dockerd.images[image] = {"Config": config}
    target = DockerTarget(tmp_path)
    facts = target.facts(JobSpec.model_validate({"name": "t", "command": "t.py", **job}))
    assert (facts.accelerator, facts.torch_version, facts.agent_in_image) == found
    assert (facts.image, facts.place) == (image, f"local Docker, image {image}")
    gpus = ("0", "1") if found[0] == "cuda" else ()
    assert facts.machine == MachineFacts(cpu_count=8, device_ids=gpus, most_processes=1600)
    assert (facts.own.engine_id, facts.own.engine_at) == ("here", dockerd.address)
    assert [note.partition(", the launcher has")[0] for note in target.notes] == notes


@pytest.fixture
def plan(make_plan, docker_facts, tmp_path, dockerd) -> LaunchPlan:
    """Three nodes on the engine of this test."""
    facts = replace(docker_facts, run_root=str(tmp_path), cwd=str(tmp_path))
    plan = make_plan(facts, nnodes="1:3", nproc_per_node=1, stop_grace_s=20)
    own = replace(ContainerSettings.of(plan), engine_id="here", engine_at=dockerd.address)
    return replace(plan, own=own)


def asked_of(dockerd: FakeDocker) -> list[str]:
    """What was asked to be changed since the last call; containers by their index."""
    asked = [line.replace("digits-0a1b2c", "RUN") for line in dockerd.asked]
    dockerd.asked.clear()
    return sorted(asked)


def seen(target: DockerTarget, plan: LaunchPlan) -> list[tuple[str, int | None, bool, str]]:
    nodes = target.observe(plan).nodes
    return [(node.state.value, node.exit_code, node.out_of_memory, node.detail) for node in nodes]


def begin_agent(plan: LaunchPlan, index: int) -> None:
    ledger = agent_ledger(RunFolder(Path(plan.run_dir)), index, plan.nodes[index].incarnation)
    ledger.parent.mkdir(exist_ok=True)
    ledger.touch()


def test_a_run_is_asked_of_the_engine_and_seen_in_what_it_holds(dockerd, plan, tmp_path):
    target, names = DockerTarget(tmp_path), [node.name for node in plan.nodes]
    create_run(plan, target)
    target.submit(plan)
    created = [f"POST containers/create name=RUN-{index}" for index in range(3)]
    started = [f"POST containers/RUN-{index}/start" for index in range(3)]
    assert asked_of(dockerd) == sorted([*created, *started, "POST networks/create"])
    assert dockerd.networks[plan.run_id]["Config"]["CheckDuplicate"] is True
    assert seen(target, plan) == [("running", None, False, "")] * 3
    dockerd.end(names[1], ExitCode=137, OOMKilled=True)
    dockerd.end(names[2], ExitCode=126)
    dockerd.refused[f"GET containers/{names[1]}"] = (404, "No such container: it")
    missing = ("missing", None, False, "")
    assert seen(target, plan)[1] == missing
    dockerd.refused.clear()
    memory = ("exited", 137, True, "OOMKilled: resources.memory of the job is too little")
    bare = "the image has no torchrun or python3: name one that holds torch (image)"
    ended = [("running", None, False, ""), memory, ("exited", 126, False, bare)]
    assert seen(target, plan) == ended
    running = LiveRun(run_id=plan.run_id, run_dir=plan.run_dir, running_nodes=1)
    assert target.live_runs() == (running,)
    del dockerd.containers[names[1]]
    assert seen(target, plan) == ended, "somebody removed what had ended"

    gone = [f"DELETE containers/RUN-{index} v=True link=False force=True" for index in range(3)]
    begin_agent(plan, 0)
    successor = plan_replacement(plan, 0)
    target.submit(successor, only=(0,))
    killed = "POST containers/RUN-0/kill"
    assert asked_of(dockerd) == [gone[0], killed, started[0], created[0]], "it had no time to end"
    assert seen(target, successor)[0] == ("running", None, False, "")
    # An agent that has not begun has no handler for SIGTERM.
    stopped = "POST containers/RUN-0/stop t="
    for grace_s, has_begun, how in (
        (20, False, killed),
        (0.5, True, f"{stopped}11"),
        (20, True, f"{stopped}30"),
        (0, True, killed),
    ):
        if has_begun:
            begin_agent(successor, 0)
        target.stop(plan.run_id, grace_s, only=(0,))
        assert asked_of(dockerd) == [gone[0], how]
        successor = plan_replacement(successor, 0)
        target.submit(successor, only=(0,))
        dockerd.asked.clear()
    target.stop(plan.run_id, 0)
    assert asked_of(dockerd) == [gone[0], gone[2], "DELETE networks/RUN", killed]
    assert seen(target, plan) == [missing, memory, missing]
    assert target.live_runs() == ()


@pytest.mark.parametrize(
    ("at", "fix"),
    [("tcp://there:1", "export DOCKER_HOST=tcp://there:1, then"), ("", "unset DOCKER_HOST, then")],
)
def test_a_run_of_another_engine_is_neither_seen_nor_stopped_here(dockerd, plan, tmp_path, at, fix):
    target = DockerTarget(tmp_path)
    there = replace(plan, own=replace(plan.own, engine_id="there", engine_at=at))
    create_run(there, target)
    for ask in (lambda: target.observe(there), lambda: target.stop(plan.run_id, 0)):
        with pytest.raises(TargetError, match="is on another Docker engine") as refused:
            ask()
        assert refused.value.hint.startswith(fix)
    nobodys = replace(plan, own=replace(plan.own, engine_id=""))
    assert {node.state.value for node in target.observe(nobodys).nodes} == {"missing"}
    target.stop("never-heard-of", 0)
    # What this engine holds is on it, whatever the plan says.
    target.submit(there)
    assert {node.state.value for node in target.observe(there).nodes} == {"running"}
    target.stop(plan.run_id, 0)
    assert dockerd.containers == {}


def test_output_is_followed_by_one_launcher_and_completed_by_any(dockerd, plan, tmp_path):
    target, path = DockerTarget(tmp_path), RunFolder(Path(plan.run_dir)).console(0, 0)
    create_run(plan, target)
    target.submit(plan)
    dockerd.logs = {plan.nodes[0].name: b"one\n"}
    target.collect(plan)
    assert not path.exists() or path.read_bytes() == b"", "its follower writes it"
    DockerTarget(tmp_path).collect(plan)
    assert path.read_bytes() == b"one\n", "another launcher has no follower"
    dockerd.logs = {plan.nodes[0].name: b"one\ntwo\n"}
    dockerd.end(plan.nodes[0].name)
    target.collect(plan)
    assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("before", "log"),
    [(b"", b"a\nb"), (b"a\n", b"a\nbc\n"), (b"0\n" * 150, b"0\n" * 150 + b"1\n" * 150)],
)
def test_a_file_of_output_gets_what_it_lacks(dockerd, tmp_path, before, log):
    dockerd.containers["it"] = {"Config": {"Tty": False}, "State": {"Status": "exited"}}
    dockerd.logs["it"] = log
    path, consoles, api = tmp_path / "console.log", Consoles(), Engine(StoppedClock()).api
    path.write_bytes(before)
    for _ in range(2):
        consoles.save(api, "it", path)
        assert path.read_bytes() == log
    consoles.save(api, "it", tmp_path / "no such folder/console.log")


@pytest.mark.parametrize(
    ("fields", "kind", "what"),
    [
        ({"secrets": ["NO_SUCH_TOKEN"]}, InputError, "export NO_SUCH_TOKEN="),
        ({"mounts": ["/usr:/there", "/no such:/data"]}, InputError,
         r"mounts.1: /no such not found on this machine\n.*mkdir -p '/no such'"),
        ({"resources": {"rdma": True}}, TargetError, "this machine has no /no/infiniband"),
        ({"mounts": ["/usr:/there"], "checkpoint_dir": "made later"}, None, ""),
    ],
)  # fmt: skip
def test_what_is_missing_here_ends_it_before_anything_starts(
    make_plan, docker_facts, tmp_path, monkeypatch, fields, kind, what
):
    monkeypatch.setattr(launcher.targets.docker.target, "RDMA_DEVICES", "/no/infiniband")
    facts = replace(docker_facts, run_root=str(tmp_path / "runs"), cwd=str(tmp_path))
    with pytest.raises(kind, match=what) if kind else contextlib.nullcontext():
        DockerTarget(tmp_path).check(make_plan(facts, **fields))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("method", "status", "message", "what", "fix"),
    [
        ("POST containers/create", 500, "Unknown runtime specified x",
         "cannot create RUN-0: Unknown runtime specified x", "set docker.runtime of the job"),
        ("POST containers/RUN-1/start", 409, "no", "cannot start RUN-1: no", ""),
        ("POST networks/create", 500, "", "cannot start RUN: 500 Server Error", ""),
        ("POST containers/create", 404, "No such image: fabric-train:cpu",
         "image fabric-train:cpu is not on this machine", "--image REF with an image"),
    ],
)  # fmt: skip
def test_a_start_that_fails_takes_back_what_it_made(
    dockerd, plan, tmp_path, method, status, message, what, fix
):
    dockerd.refused[method.replace("RUN", plan.run_id)] = (status, message)
    with pytest.raises(TargetError) as refused:
        DockerTarget(tmp_path).submit(plan)
    assert what in refused.value.what.replace(plan.run_id, "RUN")
    assert refused.value.hint.startswith(fix)
    assert (dockerd.containers, dockerd.networks) == ({}, {})


def test_a_container_of_somebody_else_is_never_taken_for_an_earlier_one(dockerd, plan, tmp_path):
    foreign = {plan.nodes[1].name: {"Labels": {}, "State": {"Status": "created"}}}
    dockerd.containers |= foreign
    with pytest.raises(TargetError, match="already in use"):
        DockerTarget(tmp_path).submit(plan)
    assert dockerd.containers == foreign


@pytest.mark.parametrize(
    ("image", "fix"),
    [
        ("no/such:1", "docker pull no/such:1"),
        ("fabric-tran:cpu", "did you mean --image fabric-train:cpu. Else: docker pull fabric-tran"),
        ("fabric-train:cuda", "make image FLAVOR=cuda in"),
    ],
)
def test_an_image_that_is_absent_is_told_with_the_command_that_gets_it(dockerd, image, fix):
    dockerd.images["fabric-train:cpu"] = {}
    with pytest.raises(TargetError, match=f"image {image} is not on this machine\n.*{fix}"):
        Engine(StoppedClock()).read_image_config(image)


def test_a_container_that_has_the_label_of_a_run_alone_is_none_of_its_nodes(dockerd):
    held = {"Id": "it", "Labels": {protocol.LABEL_RUN_ID: "run"}, "State": {"Status": "new"}}
    dockerd.containers["it"] = held
    gone = {"node_index": -1, "incarnation": -1, "state": NodeState.MISSING}
    found = OwnContainer(id="it", run_id="run", run_dir="", **gone)
    assert Engine(StoppedClock()).list_containers("run") == [found]


def test_what_the_engine_does_not_remove_is_told_after_a_while(dockerd):
    dockerd.networks["net"] = {"Id": "net", "Labels": {protocol.LABEL_RUN_ID: "run"}, "State": {}}
    for status, what in ((403, "cannot remove a network: it"), (409, "net within 30 s\n")):
        dockerd.refused["DELETE networks/net"] = (status, "it has active endpoints")
        clock = StoppedClock(100)
        clock.on_sleep = lambda _, clock=clock: setattr(clock, "now", clock.now + 7)
        with pytest.raises(TargetError, match=what):
            Engine(clock).sweep_networks("run")
        assert 135 < clock.now < 136
    clock = StoppedClock(on_sleep=lambda _: dockerd.refused.clear())
    Engine(clock).sweep_networks("run")
    assert (dockerd.networks, clock.now) == ({}, 0.1)
