"""Plans for hosts: addresses that all reach, each node with its own host's paths."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.code.place import CodePlace
from launcher.code.record import pack_code
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending, NodeOutcome
from launcher.contract.errors import InputError, TargetError
from launcher.contract.node_plan import parse_task
from launcher.contract.process_stat import write_record
from launcher.follow.loop import write_outcome
from launcher.runs.failure import read_report
from launcher.runs.folder import RunFolder
from launcher.runs.summary import render_clocks, render_failure
from launcher.targets.agent_archive import read_archive
from launcher.targets.hosts.plan import (
    check_clocks,
    check_shared,
    check_versions,
    decide_addresses,
    describe_hosts,
    find_caller,
)
from launcher.targets.hosts.program.messages import Address, NodeSeen
from launcher.targets.hosts.render import render_hosts
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.target import HostsTarget
from tests.launcher.agent_sources import sources_in
from tests.launcher.targets.hosts.conftest import TWO, host
from tests.launcher.worker_ends import worker_end

HOSTS = (Host(name="gpu1"), Host(name="gpu2"))
ADDRESSES = (
    (Address(interface="eth0", address="10.0.0.1"), Address(interface="ib0", address="10.1.0.1")),
    (Address(interface="eth0", address="10.0.0.2"), Address(interface="ib1", address="10.1.0.2")),
)
ALL = {(1, 0, "10.0.0.1"): "10.0.0.2", (1, 0, "10.1.0.1"): "10.1.0.2"}
FAST = tuple((slow, ib.having(speed=200_000)) for slow, ib in ADDRESSES)
NAMED = (replace(HOSTS[0], interface="eth0"), replace(HOSTS[1], address="10.1.0.2"))


@pytest.mark.parametrize(
    ("hosts", "candidates", "reached", "chosen"),
    [
        (HOSTS, ADDRESSES, ALL, ["eth0 10.0.0.1", "eth0 10.0.0.2"]),
        # From where the other calls.
        (HOSTS, ADDRESSES, {(1, 0, "10.1.0.1"): "10.1.0.2"}, ["ib0 10.1.0.1", "ib1 10.1.0.2"]),
        (HOSTS, FAST, ALL, ["ib0 10.1.0.1", "ib1 10.1.0.2"]),
        (NAMED, ADDRESSES, ALL, ["eth0 10.0.0.1", "ib1 10.1.0.2"]),
    ],
    ids=["the first", "the one that is reached", "the faster", "the named"],
)
def test_an_address_is_taken_that_all_others_reach(hosts, candidates, reached, chosen):
    found = decide_addresses(hosts, candidates, reached)
    assert [f"{address.interface} {address.address}" for address in found] == chosen


def test_a_pair_that_does_not_meet_is_named_and_an_interface_that_a_host_lacks():
    with pytest.raises(TargetError) as error:
        decide_addresses(HOSTS, ADDRESSES, {})
    assert error.value.what == "gpu1: gpu2 cannot reach it at 10.0.0.1 (eth0), 10.1.0.1 (ib0)"
    three, of_three = (*HOSTS, Host(name="gpu3")), (*ADDRESSES, ADDRESSES[1])
    with pytest.raises(TargetError, match=r"^gpu1: gpu3 cannot reach it at "):
        decide_addresses(three, of_three, ALL)
    with pytest.raises(TargetError, match="gpu1: found no wg0"):
        decide_addresses((replace(HOSTS[0], interface="wg0"), HOSTS[1]), ADDRESSES, ALL)


def test_each_node_has_the_address_interface_and_folders_of_its_host(make_host_plan):
    first, second = make_host_plan().nodes
    assert (first.local_addr, second.local_addr) == ("10.1.0.1", "10.1.0.2")
    assert dict(first.env)["NCCL_SOCKET_IFNAME"] == "=ib0"
    assert dict(second.env)["GLOO_SOCKET_IFNAME"] == "ib1"
    assert second.workdir == "/home/gpu2/.launcher/runs/digits-0a1b2c/code/examples"
    assert second.log_dir == "/home/gpu2/.launcher/runs/digits-0a1b2c/nodes/1/0"
    assert dict(second.env)["LAUNCHER_RDZV_ENDPOINT"] == "10.1.0.1:23456"


@pytest.mark.parametrize(
    ("called_in", "folder"), [(".", "."), ("my träining", "my träining"), ("..", "inner")]
)
def test_paths_of_a_job_start_at_the_callers_folder_in_the_code(tmp_path, called_in, folder):
    root = tmp_path / "räpo"
    (root / "my träining").mkdir(parents=True)
    code = pack_code(CodePlace(root=root, inner="inner", command=("train.py",)), [])
    assert find_caller(code.record, root / called_in) == folder


def test_gpus_are_those_that_are_free_on_each_host(make_host_plan):
    hosts = (
        host("gpu1", "10.1.0.1", device_ids=("0", "1", "2")),
        host("gpu2", "10.1.0.2", device_ids=("4", "6")),
    )
    plan = make_host_plan(hosts, nproc_per_node=2)
    assert [node.device_ids for node in plan.nodes] == [("0", "1"), ("4", "6")]
    seen = [node.spec.env["CUDA_VISIBLE_DEVICES"] for node in render_hosts(plan).nodes]
    assert seen == ["0,1", "4,6"]
    with pytest.raises(InputError, match="3 GPUs asked for, but 2 of gpu2 are free"):
        make_host_plan(hosts, nproc_per_node=3)


def test_the_place_of_a_run_is_told_with_what_was_checked():
    found = tuple(host(f"gpu{n}", f"10.0.0.{n}") for n in range(1, 11))
    assert describe_hosts(found[:1], None, shared=True) == (
        "hosts gpu1 (checked: ssh, torch, ports, leases, clocks)"
    )
    assert describe_hosts(found, "a:1", shared=True) == (
        f"hosts {', '.join(one.name for one in found[:8])} and 2 more (checked: ssh, Docker, "
        "ports, leases, the way of each to gpu1, one checkpoint folder)"
    )
    assert describe_hosts(found[:8], "a:1", shared=False).endswith(
        "gpu8 (checked: ssh, Docker, ports, leases, the way of each to gpu1)"
    )


def test_only_a_folder_that_the_job_names_is_taken_for_shared(make_host_plan):
    own = make_host_plan(nnodes="1:2")
    assert own.checkpoint_dir == "/home/gpu1/.launcher/checkpoints/digits-0a1b2c"
    shared = make_host_plan(nnodes="1:2", checkpoint_dir="/nfs/digits")
    assert dict(shared.nodes[1].env)["CHECKPOINT_DIR"] == "/nfs/digits"
    assert dict(shared.nodes[1].rendezvous.conf)["fence_dir"] == "/nfs/digits"  # type: ignore[union-attr]
    assert "fence_dir" not in dict(own.nodes[1].rendezvous.conf)  # type: ignore[union-attr]


def test_clocks_that_differ_are_refused_for_c10d_alone():
    hosts = (host("gpu1", "10.1.0.1"), host("gpu2", "10.1.0.2", clock_offset_s=37.2))
    with pytest.raises(TargetError, match="gpu2: its clock is 37 s ahead of gpu1's"):
        check_clocks(hosts, "c10d")
    check_clocks(hosts, "roster")
    check_clocks(TWO, "c10d")


def test_the_script_of_a_plan_on_hosts_is_as_recorded(make_host_plan, expect_golden):
    plan = make_host_plan(engine="torchrun", command=["train.py", "it's $HOME", "a\nb"])
    expect_golden("hosts-static-2x1.sh", render_hosts(plan).shell())


SSH = """#!/bin/sh
# Stands in for ssh, with every host on this machine.
shift
[ "$1" = -tt ] && shift
exec sh -c "$*"
"""
PYTHON = """#!/bin/sh
cp "$1" "$SEEN/agent-$LAUNCHER_NODE_INDEX.pyz"
cp "$2" "$SEEN/task-$LAUNCHER_NODE_INDEX.json"
"""


@pytest.mark.parametrize("embed", [False, True])
def test_the_script_brings_each_host_its_agent_and_task(make_host_plan, tmp_path, embed):
    for name, text in (("bin/ssh", SSH), ("bin/python", PYTHON)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "code/examples").mkdir(parents=True)
    code = shutil.make_archive(str(tmp_path / "c0de"), "gztar", tmp_path / "code")
    python = str(tmp_path / "bin/python")
    hosts = tuple(
        host(name, f"10.1.0.{last}", python=python, state_dir=f"{tmp_path}/a {name}")
        for last, name in enumerate(("gpu1", "gpu2"), 1)
    )
    plan = make_host_plan(hosts, engine="agent", run_root=str(tmp_path / "runs"))
    script = render_hosts(plan).shell(embed=embed)
    assert ("base64" in script) == embed
    (tmp_path / "artifact.sh").write_text(script)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "CODE": code, "SEEN": str(tmp_path)}
    subprocess.run(["bash", "artifact.sh"], cwd=tmp_path, env=env, check=True, timeout=60)
    for node in plan.nodes:
        agent = (tmp_path / f"agent-{node.node_index}.pyz").read_bytes()
        assert sources_in(agent) == sources_in(read_archive())
        task = parse_task((tmp_path / f"task-{node.node_index}.json").read_text())
        assert (task.node, task.settings) == (node, plan.agent)


def test_a_container_is_on_the_hosts_network_and_its_folders_are_mounts(make_host_plan):
    plan = make_host_plan(image="fabric-train:cpu", inner="examples", hosts={})
    node = render_hosts(plan).nodes[1]
    words = list(node.spec.argv)
    assert words[words.index("--network") + 1] == "host"
    assert words[words.index("--workdir") + 1] == "/launcher/code/examples"
    run_dir = "/home/gpu2/.launcher/runs/digits-0a1b2c"
    assert f"type=bind,source={run_dir},target=/launcher/run" in words
    assert f"type=bind,source={run_dir}/code,target=/launcher/code" in words
    assert "/home/gpu2/.launcher/checkpoints/digits-0a1b2c" in node.folders
    assert node.spec.container == "digits-0a1b2c-1"


def test_a_run_in_held_containers_has_the_folders_of_their_hosts_and_starts_none(make_host_plan):
    gpus = tuple(replace(each, device_ids=("0",)) for each in TWO)
    plan = make_host_plan(gpus, image="fabric-train:cuda", inner="examples", hold="dev-1")
    node = render_hosts(plan).nodes[1]
    run_dir = "/home/gpu2/.launcher/runs/digits-0a1b2c"
    assert "docker" not in node.spec.argv
    assert node.spec.argv[-1] == f"{run_dir}/nodes/1/0/node-plan.json"
    assert node.node.mounts == ()
    assert node.node.workdir == f"{run_dir}/code/examples"
    assert node.spec.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert node.spec.env["CHECKPOINT_DIR"] == "/home/gpu2/.launcher/checkpoints/digits-0a1b2c"
    assert node.spec.container == ""


def test_another_torch_is_named_with_its_host():
    first, second = (replace(facts, torch_version="2.13.0") for facts in TWO)
    hosts = (first, replace(second, torch_version="2.12.0"), replace(first, host=Host(name="gpu3")))
    with pytest.raises(TargetError) as error:
        check_versions(hosts)
    assert error.value.what == "torch is 2.13.0 on most hosts, but: gpu2 2.12.0"
    check_versions((first, hosts[2]))


def test_a_folder_that_is_not_shared_is_named_with_its_host():
    with pytest.raises(TargetError) as error:
        check_shared(["gpu1", "gpu2", "gpu3"], [{0, 2}, {1}, {0, 2}], "/mnt/c")
    told = "gpu2: checkpoint_dir /mnt/c is not the folder of the other hosts"
    assert error.value.what == told
    check_shared(["gpu1", "gpu2"], [{0, 1}, {0, 1}], "/mnt/c")
    with pytest.raises(TargetError) as error:
        check_shared(["gpu1", "gpu2"], [{0}, {1}], "/home/me/.launcher/checkpoints/digits-0a1b")
    assert "leave out --resume: --checkpoint-dir PATH" in error.value.hint


def test_the_first_cause_is_found_by_the_launchers_clock(make_host_plan, tmp_path):
    behind = replace(TWO[0], clock_offset_s=-30.0)
    plan = make_host_plan((behind, TWO[1]), engine="torchrun")
    # By its own clock gpu1, half a minute behind, failed first.
    for index, failed_at in ((0, 1000.0), (1, 1025.0)):
        folder = tmp_path / f"nodes/{index}/0/digits/attempt_0/0"
        folder.mkdir(parents=True)
        error = folder / "error.json"
        error.write_text(json.dumps({"message": {"message": f"ValueError: of {index}"}}))
        os.utime(error, (failed_at, failed_at))
    told = read_report(RunFolder(tmp_path), plan)
    assert (told.first.host, told.first.failed_at) == ("gpu2", 1025.0)
    assert [other.failed_at for other in told.collateral] == [1030.0]
    lines = [*render_failure(told, "training-failed"), *render_clocks(told.clock_offsets_s)]
    assert lines[0].startswith("  first failure: rank 1 on node 1 (gpu2): ValueError: of 1")
    assert lines[-1] == (
        "  clocks, against this machine's: gpu1 30.0 s behind; times here are corrected"
    )


def test_hosts_that_are_not_reached_are_tried_once_for_all_runs_of_a_list(
    make_host_plan, tmp_path, monkeypatch
):
    for run_id in ("one", "two", "three"):
        plan = replace(make_host_plan(), run_id=run_id, run_dir=str(tmp_path / run_id))
        RunFolder(Path(plan.run_dir)).create(plan, "", 0.0)
    tried: list[str] = []

    def open_none(self: Ssh, host: Host) -> None:
        tried.append(host.name)
        raise TargetError(f"{host.name}: it does not answer")

    monkeypatch.setattr(Ssh, "open", open_none)
    monkeypatch.setattr("launcher.targets.hosts.target._away", {})
    assert HostsTarget(tmp_path).live_runs() == ()
    with pytest.raises(TargetError, match="it does not answer"):
        HostsTarget(tmp_path).observe(plan)
    assert sorted(tried) == ["gpu1", "gpu2"]


def test_a_kill_in_a_containers_life_is_not_why_a_worker_failed_later(
    make_host_plan, tmp_path, monkeypatch
):
    plan = replace(make_host_plan(engine="agent"), run_dir=str(tmp_path))
    seen = NodeSeen(state="exited", exit_code=1, out_of_memory=True)
    told = {f"{index}.0": seen for index in (0, 1)}
    monkeypatch.setattr(HostsTarget, "_copy", lambda self, plan: (told, False, None))
    for index, exit_code in ((0, 1), (1, -9)):
        end = worker_end(index, exit_code=exit_code)
        cause = Cause.TRAINING_FAILED
        outcome = NodeOutcome(node_index=index, incarnation=0, cause=cause, first=end)
        path = tmp_path / f"nodes/{index}/0/outcome.json"
        path.parent.mkdir(parents=True)
        path.write_text(outcome.to_json())
    observed = HostsTarget(tmp_path).observe(plan).nodes
    assert [node.out_of_memory for node in observed] == [False, True]
    # As on hosts from which another launcher has taken the run once it had ended.
    told.clear()
    observed = HostsTarget(tmp_path).observe(plan).nodes
    assert [(node.state.value, node.exit_code) for node in observed] == [("exited", 1)] * 2


def test_a_host_speaks_for_a_node_that_could_write_nothing(make_host_plan, tmp_path):
    plan = make_host_plan(engine="agent")
    folder = tmp_path / "nodes/1/0"
    folder.mkdir(parents=True)
    record = {"pid": 7, "start": "x", "exit_code": 198, "detail": ""}
    write_record(folder, record)
    told = read_report(RunFolder(tmp_path), plan)
    assert (told.first.host, told.first.exception) == ("gpu2", "No space left on device")
    seen = Ending(cause=Cause.DISK_FULL, detail="node 1 ended with exit code 198")
    outcome = write_outcome(RunFolder(tmp_path), plan, seen, 9.0)
    assert outcome.detail == seen.detail, "the disk of the launcher is another one"
    write_record(folder, {**record, "exit_code": 1, "detail": protocol.LAUNCHER_GONE})
    assert read_report(RunFolder(tmp_path), plan).first is None
