"""Target ``docker`` on a real engine.

Where torch does not matter, ``torchrun`` in the container is a shell script that drops its
flags and runs the command: the workload is stood in for, never the engine or the target.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.errors import InputError, LauncherError, TargetError
from launcher.contract.node_plan import Mount
from launcher.contract.states import NodeState
from launcher.follow.loop import create_run
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import plan_replacement
from launcher.runs.folder import RunFolder
from launcher.targets.docker.target import NO_RUNTIME, DockerTarget, has_nvidia
from launcher.targets.docker_options import ContainerSettings
from tests.launcher.docker_place import IMAGE, LINGER
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


# -- stopping ---------------------------------------------------------------------------------


def test_a_stop_that_comes_before_the_agent_has_begun_is_not_lost(place):
    script = place.folder / "script.py"
    script.write_text("import time\ntime.sleep(600)\n")
    plan = place.plan_torch(["/script.py"], engine="agent", mounts=[f"{script}:/script.py:ro"])
    create_run(plan, place.target)
    place.target.submit(plan)
    began = time.monotonic()
    # The first process of a container loses a signal for which it has no handler yet.
    place.target.stop(plan.run_id, 120)
    assert time.monotonic() - began < 60
    assert place.held(plan.run_id) == []


# -- what cannot start ------------------------------------------------------------------------


def test_an_image_that_is_absent_is_an_error_with_the_fix_and_nothing_is_pulled(place):
    job = JobSpec.model_validate({"name": "t", "command": "t.py", "image": "no/such-image:1"})
    with pytest.raises(TargetError, match="docker pull no/such-image:1"):
        place.target.facts(job)
    plan = place.plan("true")
    with pytest.raises(TargetError, match="no/such-image:1 is not on this machine"):
        place.target.submit(replace(plan, image="no/such-image:1"))
    assert place.held(plan.run_id) == []


def test_gpus_that_the_engine_cannot_give_are_told_with_the_fix(place, monkeypatch):
    if has_nvidia(place.api.info()):
        pytest.skip("this engine gives GPUs")
    tool = place.folder / "bin" / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0\necho 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = JobSpec.model_validate({"name": "t", "command": "t.py", "image": IMAGE})
    assert place.target.facts(job).accelerator == "cpu"
    told = [note for note in place.target.notes if "GPUs" in note]
    assert told == [f"this machine's GPUs stay unused: {NO_RUNTIME}"]
    place.target.notes.clear()
    on_cpu = job.model_copy(update={"nproc_per_node": "cpu"})
    place.target.facts(on_cpu)
    assert not any("GPUs" in note for note in place.target.notes)


def test_what_is_missing_here_ends_it_before_anything_starts(place, monkeypatch):
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    missing: list[tuple[dict[str, Any], type[LauncherError], str]] = [
        ({"secrets": ["NO_SUCH_TOKEN"]}, InputError, "export NO_SUCH_TOKEN="),
        ({"mounts": [f"{place.folder}/nowhere:/data"]}, InputError, "nowhere not found"),
    ]
    if not Path("/dev/infiniband").exists():
        missing.append(({"resources": {"rdma": True}}, TargetError, "/dev/infiniband"))
    for fields, kind, words in missing:
        plan = place.plan("true", **fields)
        with pytest.raises(kind, match=words):
            place.target.check(plan)
        assert not Path(plan.run_dir).exists()


def test_a_start_that_fails_half_way_leaves_nothing_behind(place):
    plan = place.plan("sleep 60", nnodes=3)
    bad = Mount(source=str(place.folder), target="/proc/1")
    last = replace(plan.nodes[2], mounts=(*plan.nodes[2].mounts, bad))
    with pytest.raises(TargetError, match="/proc"):
        place.target.submit(replace(plan, nodes=(*plan.nodes[:2], last)))
    assert place.held(plan.run_id) == []


def test_a_container_of_somebody_else_is_never_taken_for_an_earlier_incarnation(place):
    plan = place.plan("true", nnodes=2)
    foreign = place.api.create_container(IMAGE, name=plan.nodes[1].name)["Id"]
    try:
        with pytest.raises(TargetError, match="already in use"):
            place.target.submit(plan)
        assert place.held(plan.run_id) == []
        assert place.api.inspect_container(foreign)["Id"] == foreign
    finally:
        place.api.remove_container(foreign, force=True)
