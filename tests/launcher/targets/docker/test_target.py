"""Target ``docker`` on a real engine.

Where torch does not matter, ``torchrun`` in the container is a shell script that drops its
flags and runs the command: the workload is stood in for, never the engine or the target.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.contract.errors import InputError, TargetError
from launcher.contract.node_plan import Mount
from launcher.contract.reasons import NodeState
from launcher.follow.loop import create_run
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import plan_replacement
from launcher.runs.folder import RunFolder
from launcher.targets.docker.target import NO_RUNTIME, DockerTarget, has_nvidia
from launcher.targets.docker_options import ContainerSettings
from tests.launcher.docker_place import CHATTER, IMAGE, LINGER, STUBBORN, Place, wait_until

pytestmark = pytest.mark.docker


# -- running ----------------------------------------------------------------------------------

ALL_REDUCE = """
import os, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
pathlib.Path(os.environ["RUN_DIR"], f"sum-{dist.get_rank()}").write_text(str(total.item()))
dist.destroy_process_group()
"""


def test_nodes_meet_by_name_over_the_private_network(place: Place) -> None:
    script = place.folder / "script.py"
    script.write_text(ALL_REDUCE)
    plan = place.plan_torch(["/script.py"], nnodes="1:2", mounts=[f"{script}:/script.py:ro"])
    assert place.run(plan, 60) == [0, 0], place.console(plan)
    assert [Path(plan.run_dir, f"sum-{rank}").read_text() for rank in (0, 1)] == ["3.0", "3.0"]


def test_a_node_that_ended_shows_its_exit_code_and_one_that_runs_shows_none(place: Place) -> None:
    plan = place.plan('[ "$LAUNCHER_NODE_INDEX" = 1 ] && exit 7; sleep 60', nnodes=2)
    place.target.submit(plan)
    wait_until(lambda: place.node(plan, 1).state is NodeState.EXITED)
    assert place.node(plan, 1).exit_code == 7
    assert place.node(plan, 0).state is NodeState.RUNNING
    assert place.node(plan, 0).exit_code is None


def test_the_console_file_holds_every_byte_that_the_node_printed(place: Place) -> None:
    printed = r"\377\000 10%%\r 20%%\r\nlast, without a newline"
    plan = place.plan(f"printf '{printed}'")
    assert place.run(plan) == [0]
    assert place.console(plan) == b"\xff\x00 10%\r 20%\r\nlast, without a newline"


def test_the_console_file_grows_while_the_node_runs(place: Place) -> None:
    plan = place.plan(LINGER)
    place.target.submit(plan)
    wait_until(lambda: place.console(plan) == b"up\n")


def test_files_in_mounts_belong_to_the_callers_uid(place: Place) -> None:
    # Root's own files would be root's anyway, so root runs the containers as somebody else.
    uid = os.getuid() or 54321
    folder = place.folder / "data"
    folder.mkdir()
    os.chown(folder, uid, -1)
    plan = place.plan("echo x >/data/made; id -u", mounts=[f"{folder}:/data"])
    own = ContainerSettings.of(plan)
    assert own.user == f"{os.getuid()}:{os.getgid()}"
    own = replace(own, user=f"{uid}:{uid}")
    assert place.run(replace(plan, own=own)) == [0], place.console(plan)
    assert (folder / "made").stat().st_uid == uid
    assert place.console(plan) == f"{uid}\n".encode()


def test_folders_of_the_run_belong_to_the_caller_and_not_to_the_engine(place: Place) -> None:
    plan = place.plan("true")
    assert place.run(plan) == [0]
    for folder in (plan.run_dir, plan.checkpoint_dir, f"{plan.run_dir}/nodes/0/0"):
        assert Path(folder).stat().st_uid == os.getuid()


def test_a_container_has_exactly_one_init_process(place: Place) -> None:
    plan = place.plan(
        "for p in /proc/[0-9]*; do cat $p/comm 2>/dev/null; done; cat /proc/1/cmdline"
    )
    assert place.run(plan) == [0]
    processes = place.console(plan).split(b"\n")
    assert sum(name in (b"docker-init", b"tini", b"dumb-init") for name in processes) == 1
    assert b"torchrun" in processes[-1], "and it is process 1"


def test_two_runs_at_once_do_not_disturb_each_other(place: Place) -> None:
    script = "getent hosts $(hostname) && sleep 1 && echo $LAUNCHER_RUN_ID >$RUN_DIR/who"
    plans = [place.plan(script, nnodes=2) for _ in range(2)]
    for plan in plans:
        place.target.submit(plan)
    assert len({name for plan in plans for name in place.held(plan.run_id)}) == 6
    for plan in plans:
        place.wait_for_end(plan)
        assert [node.exit_code for node in place.target.observe(plan).nodes] == [0, 0]
        assert Path(plan.run_dir, "who").read_text() == f"{plan.run_id}\n"


def test_a_kill_for_memory_is_told_apart(place: Place) -> None:
    eat = "x = []\nwhile True: x.append(bytearray(10**7))"
    # The worker is killed, its agent survives and exits 1, as torchrun does.
    plan = place.plan(f"python -c '{eat}'; exit 1", resources={"memory": "64Mi"})
    assert place.run(plan) == [1]
    node = place.node(plan)
    assert node.out_of_memory
    assert "resources.memory" in node.detail


def test_an_image_without_torchrun_is_named_as_the_cause(place: Place) -> None:
    plan = place.plan("true", env={"PATH": "/usr/bin:/bin"})
    assert place.run(plan) == [127]
    assert "torchrun" in place.node(plan).detail


# -- replacing, stopping ----------------------------------------------------------------------


def test_a_replacement_has_the_same_name_and_the_old_one_is_dead_first(place: Place) -> None:
    plan = place.plan(f"echo $LAUNCHER_INCARNATION; {LINGER}", nnodes="1:2")
    place.target.submit(plan)
    wait_until(lambda: place.console(plan, 1) == b"0\nup\n")
    before = place.held(plan.run_id)
    successor = plan_replacement(plan, 1)
    place.target.submit(successor, only=(1,))
    wait_until(lambda: place.console(plan, 1, incarnation=1) == b"1\nup\n")
    assert place.held(plan.run_id) == before
    assert place.node(plan, 1).state is NodeState.MISSING, "an old incarnation is not this node"
    assert place.node(successor, 1).state is NodeState.RUNNING
    assert place.node(successor, 0).state is NodeState.RUNNING
    assert place.console(plan, 1) == b"0\nup\n", "its output is kept, and it had no time to end"


def test_stop_lets_nodes_end_in_their_grace_keeps_their_output_and_leaves_nothing(
    place: Place,
) -> None:
    plan = place.plan(f'[ "$LAUNCHER_NODE_INDEX" = 2 ] && exit 3; {LINGER}', nnodes=3)
    place.target.submit(plan)
    wait_until(lambda: all(place.console(plan, index) == b"up\n" for index in (0, 1)))
    place.target.stop(plan.run_id, 20)
    assert place.held(plan.run_id) == []
    assert [place.console(plan, index) for index in range(3)] == [b"up\nbye\n", b"up\nbye\n", b""]
    assert {node.state for node in place.target.observe(plan).nodes} == {NodeState.MISSING}


def test_stop_without_grace_kills_at_once(place: Place) -> None:
    plan = place.plan(STUBBORN)
    place.target.submit(plan)
    wait_until(lambda: place.console(plan) == b"up\n")
    began = time.monotonic()
    place.target.stop(plan.run_id, 0)
    assert time.monotonic() - began < 5
    assert place.held(plan.run_id) == []


def test_a_stop_that_comes_before_the_agent_has_begun_is_not_lost(place: Place) -> None:
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


def test_stop_may_be_called_again_and_for_a_run_that_is_not_known(place: Place) -> None:
    plan = place.plan("true")
    place.run(plan)
    for run_id in (plan.run_id, plan.run_id, "never-heard-of"):
        place.target.stop(run_id, 0)
    assert place.held(plan.run_id) == []


def test_live_runs_are_found_by_label_with_their_folder_and_their_running_nodes(
    place: Place,
) -> None:
    plan = place.plan('[ "$LAUNCHER_NODE_INDEX" = 0 ] && exit 0; sleep 60', nnodes=2)
    place.target.submit(plan)
    wait_until(lambda: place.node(plan, 0).state is NodeState.EXITED)
    other = DockerTarget(place.folder / "elsewhere")
    (live,) = [live for live in other.live_runs() if live.run_id == plan.run_id]
    assert (live.run_dir, live.running_nodes) == (plan.run_dir, 1)


def test_a_network_left_alone_counts_as_a_run_to_stop(place: Place) -> None:
    plan = place.plan("true")
    place.api.create_network(**place.target.render(plan).network_kwargs())
    (live,) = [live for live in place.target.live_runs() if live.run_id == plan.run_id]
    assert (live.run_dir, live.running_nodes) == (plan.run_dir, 0)
    place.target.stop(plan.run_id, 0)
    assert place.held(plan.run_id) == []


SUBMIT_AND_STAY = """
import sys, time
from pathlib import Path
from launcher.plan.launch_plan import parse_plan
from launcher.targets.docker.target import NO_RUNTIME, DockerTarget, has_nvidia
from tests.launcher.docker_place import CHATTER, IMAGE, LINGER, STUBBORN, Place, wait_until
DockerTarget(Path(sys.argv[1])).submit(parse_plan(sys.stdin.read()))
print("submitted", flush=True)
time.sleep(60)
"""


def test_after_kill_9_of_the_launcher_another_call_finds_collects_and_stops(place: Place) -> None:
    plan = place.plan(CHATTER)
    with subprocess.Popen(
        [sys.executable, "-c", SUBMIT_AND_STAY, str(place.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        launcher.stdin.write(plan.to_json())
        launcher.stdin.close()
        assert launcher.stdout.readline() == "submitted\n"
        try:
            wait_until(lambda: place.console(plan).startswith(b"up\nmore\n"))
        finally:
            launcher.kill()
    written = len(place.console(plan))
    assert plan.run_id in [live.run_id for live in place.target.live_runs()]
    assert place.node(plan).state is NodeState.RUNNING

    def grown() -> bool:
        place.target.collect(plan)
        return len(place.console(plan)) > written + 20

    wait_until(grown)
    place.target.stop(plan.run_id, 0)
    assert place.held(plan.run_id) == []
    assert place.console(plan) == b"up\n" + b"more\n" * place.console(plan).count(b"more")


# -- what cannot start ------------------------------------------------------------------------


def test_an_image_that_is_absent_is_an_error_with_the_fix_and_nothing_is_pulled(
    place: Place,
) -> None:
    job = JobSpec.model_validate({"name": "t", "command": "t.py", "image": "no/such-image:1"})
    with pytest.raises(TargetError, match="docker pull no/such-image:1"):
        place.target.facts(job)
    plan = place.plan("true")
    with pytest.raises(TargetError, match="no/such-image:1 is not on this machine"):
        place.target.submit(replace(plan, image="no/such-image:1"))
    assert place.held(plan.run_id) == []


def test_gpus_that_the_engine_cannot_give_are_told_with_the_fix(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert told == [f"2 GPUs stay unused: {NO_RUNTIME}"]
    place.target.notes.clear()
    on_cpu = job.model_copy(update={"nproc_per_node": "cpu"})
    place.target.facts(on_cpu)
    assert not any("GPUs" in note for note in place.target.notes)


def test_a_secret_that_is_not_set_ends_it_before_anything_starts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    plan = place.plan("true", secrets=["NO_SUCH_TOKEN"])
    with pytest.raises(InputError, match="export NO_SUCH_TOKEN="):
        place.target.submit(plan)
    assert place.held(plan.run_id) == []
    assert not Path(plan.run_dir).exists()


def test_a_secret_reaches_the_node_and_neither_the_script_nor_the_run_folder(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret-value")
    plan = place.plan('[ "${#API_TOKEN}" = 12 ]', secrets=["API_TOKEN"])
    script = place.target.render(plan).shell()
    RunFolder(Path(plan.run_dir)).create(plan, script, at=0)
    assert place.run(plan) == [0]
    files = [path for path in Path(plan.run_dir).rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert "s3cret-value" not in script + plan.to_json()
    assert [path for path in files if b"s3cret-value" in path.read_bytes()] == []


def test_a_mount_whose_source_is_missing_ends_it_before_anything_starts(place: Place) -> None:
    plan = place.plan("true", mounts=[f"{place.folder}/nowhere:/data"])
    with pytest.raises(InputError, match="nowhere not found"):
        place.target.submit(plan)
    assert place.held(plan.run_id) == []


@pytest.mark.skipif(Path("/dev/infiniband").exists(), reason="this machine has RDMA devices")
def test_rdma_on_a_machine_without_it_is_an_error_with_the_fix(place: Place) -> None:
    plan = place.plan("true", resources={"rdma": True})
    with pytest.raises(TargetError, match="/dev/infiniband"):
        place.target.submit(plan)
    assert place.held(plan.run_id) == []


def test_a_start_that_fails_half_way_leaves_nothing_behind(place: Place) -> None:
    plan = place.plan("sleep 60", nnodes=3)
    bad = Mount(source=str(place.folder), target="/proc/1")
    last = replace(plan.nodes[2], mounts=(*plan.nodes[2].mounts, bad))
    with pytest.raises(TargetError, match="/proc"):
        place.target.submit(replace(plan, nodes=(*plan.nodes[:2], last)))
    assert place.held(plan.run_id) == []


def test_a_container_of_somebody_else_is_never_taken_for_an_earlier_incarnation(
    place: Place,
) -> None:
    plan = place.plan("true", nnodes=2)
    foreign = place.api.create_container(IMAGE, name=plan.nodes[1].name)["Id"]
    try:
        with pytest.raises(TargetError, match="already in use"):
            place.target.submit(plan)
        assert place.held(plan.run_id) == []
        assert place.api.inspect_container(foreign)["Id"] == foreign
    finally:
        place.api.remove_container(foreign, force=True)
