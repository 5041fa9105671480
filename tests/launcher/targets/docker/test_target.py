"""Target ``docker`` on a real engine.

Where torch does not matter, ``torchrun`` in the container is a shell script that drops its
flags and runs the command: the workload is stood in for, never the engine or the target.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.contract.causes import NodeState
from launcher.plan.launch_plan import plan_replacement
from launcher.runs.folder import RunFolder
from launcher.targets.docker.target import DockerTarget
from launcher.targets.docker_options import ContainerSettings
from tests.launcher.docker_place import LINGER
from tests.waiting import wait_until

pytestmark = pytest.mark.docker


# -- running ----------------------------------------------------------------------------------


def test_a_run_from_its_submission_to_its_stop(place):
    script = f'echo $LAUNCHER_INCARNATION; [ "$LAUNCHER_NODE_INDEX" = 2 ] && exit 7; {LINGER}'
    plan = place.plan(script, nnodes="1:3")
    place.target.submit(plan)
    wait_until(lambda: [place.console(plan, i) for i in range(3)] == [b"0\nup\n"] * 2 + [b"0\n"])
    wait_until(lambda: place.node(plan, 2).state is NodeState.EXITED)
    assert [n.exit_code for n in place.target.observe(plan).nodes] == [None, None, 7]
    assert place.node(plan, 0).state is NodeState.RUNNING
    other = DockerTarget(place.folder / "elsewhere")
    (live,) = [live for live in other.live_runs() if live.run_id == plan.run_id]
    assert (live.run_dir, live.running_nodes) == (plan.run_dir, 2)

    before = place.held(plan.run_id)
    successor = plan_replacement(plan, 1)
    place.target.submit(successor, only=(1,))
    wait_until(lambda: place.console(plan, 1, incarnation=1) == b"1\nup\n")
    assert place.held(plan.run_id) == before, "it has the same name"
    assert place.node(plan, 1).state is NodeState.MISSING, "an old incarnation is not this node"
    assert place.node(successor, 1).state is NodeState.RUNNING
    assert place.node(successor, 0).state is NodeState.RUNNING
    assert place.console(plan, 1) == b"0\nup\n", "its output is kept, and it had no time to end"

    place.target.stop(plan.run_id, 20)
    assert place.held(plan.run_id) == []
    assert place.console(plan, 0) == b"0\nup\nbye\n"
    assert place.console(plan, 1, incarnation=1) == b"1\nup\nbye\n"
    assert {node.state for node in place.target.observe(plan).nodes} == {NodeState.MISSING}
    for run_id in (plan.run_id, "never-heard-of"):
        place.target.stop(run_id, 0)


def test_a_node_that_was_taken_off_its_network_says_so_with_the_command_that_puts_it_back(place):
    plan = place.plan(LINGER, nnodes="1:2")
    place.target.submit(plan)
    wait_until(lambda: place.console(plan, 1) == b"up\n")
    api = place.target._engine.api
    api.disconnect_container_from_network(plan.nodes[1].name, plan.run_id)
    cut = place.node(plan, 1)
    assert (place.node(plan, 0).detail, cut.state) == ("", NodeState.RUNNING)
    back = f"docker network connect {plan.run_id} {plan.nodes[1].name}"
    assert cut.detail.startswith(f"it is on no network: {back}; if that one is gone: ")
    api.connect_container_to_network(*back.split()[:2:-1])
    assert place.node(plan, 1).detail == ""
    place.target.stop(plan.run_id, 0)


FINDS = r"""
printf '\377\000 10%%\r 20%%\r\n'
for p in /proc/[0-9]*; do cat $p/comm 2>/dev/null; done
echo first: $(tr '\0' '\n' </proc/1/cmdline | head -3)
id -u
echo x >/data/made
printf "secret of ${#API_TOKEN}, without a newline"
"""


def test_what_a_container_finds_prints_and_leaves(place, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cret-value")
    # Root's own files would be root's anyway, so root runs the containers as somebody else.
    uid = os.getuid() or 54321
    folder = place.folder / "data"
    folder.mkdir()
    os.chown(folder, uid, -1)
    plan = place.plan(FINDS, mounts=[f"{folder}:/data"], secrets=["API_TOKEN"])
    own = ContainerSettings.of(plan)
    assert own.user == f"{os.getuid()}:{os.getgid()}"
    plan = replace(plan, own=replace(own, user=f"{uid}:{uid}"))
    script = place.target.render(plan).shell()
    RunFolder(Path(plan.run_dir)).create(plan, script, at=0)
    assert place.run(plan) == [0], place.console(plan)

    lines = place.console(plan).split(b"\n")
    assert lines[0] == b"\xff\x00 10%\r 20%\r"
    assert sum(name in (b"docker-init", b"tini", b"dumb-init") for name in lines) == 1
    first, user, last = lines[-3:]
    assert b"torchrun" in first, "the one init process is process 1"
    assert (user, last) == (str(uid).encode(), b"secret of 12, without a newline")
    assert (folder / "made").stat().st_uid == uid
    for made in (plan.run_dir, plan.checkpoint_dir, f"{plan.run_dir}/nodes/0/0"):
        assert Path(made).stat().st_uid == os.getuid()
    files = [path for path in Path(plan.run_dir).rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert "s3cret-value" not in script + plan.to_json()
    assert [path for path in files if b"s3cret-value" in path.read_bytes()] == []


def test_an_ending_for_memory_and_one_without_torchrun_are_told_apart(place):
    eat = "x = []\nwhile True: x.append(bytearray(10**7))"
    # The worker is killed, its agent survives and exits 1, as torchrun does.
    eats = place.plan(f"python -c '{eat}'; exit 1", resources={"memory": "64Mi"})
    bare = place.plan("true", env={"PATH": "/usr/bin:/bin"})
    assert [place.run(eats), place.run(bare)] == [[1], [127]]
    assert place.node(eats).out_of_memory
    assert "resources.memory" in place.node(eats).detail
    assert "torchrun" in place.node(bare).detail
