"""Local processes, real ones: found by their run, ended with all that they started."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.contract.causes import Cause, NodeState
from launcher.contract.ending import NodeOutcome
from launcher.contract.errors import TargetError
from launcher.contract.protocol import NODE_INDEX, RUN_ID
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_replacement, plan_run
from launcher.targets import process_table
from launcher.targets.interpreter import read_torch_version
from launcher.targets.local.target import LocalTarget, find_free_ports
from launcher.targets.machine import read_gpus
from launcher.targets.processes import ProcessSettings
from tests.waiting import wait_until

MakeJob = Callable[..., JobSpec]

# In the place of the interpreter, so that a node is up in milliseconds: the agent starts a worker
# in a session of its own, with torchrun's mark, and leaves it behind when it is killed.
AGENT = """#!/bin/sh
TORCHELASTIC_RUN_ID=x setsid sh -c 'trap "" TERM; while :; do sleep 0.1; done' &
worker=$!
trap 'kill -KILL $worker; exit 1' TERM
case "$*" in *quick*) kill -KILL $worker; exit 7;; esac
touch "$RUN_DIR/up-$LAUNCHER_NODE_INDEX"
while :; do wait $worker; done
"""


@pytest.fixture
def target(tmp_path: Path) -> LocalTarget:
    return LocalTarget(tmp_path / "runs")


@pytest.fixture
def make_local(
    tmp_path: Path, target: LocalTarget, make_job: MakeJob
) -> Iterator[Callable[..., LaunchPlan]]:
    agent = tmp_path / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    run_ids = []

    def make(run_id: str | None = None, **fields: object) -> LaunchPlan:
        run_id = run_id or f"digits-{os.urandom(3).hex()}"
        run_ids.append(run_id)
        facts = replace(target.facts(make_job()), own=ProcessSettings(python=str(agent)))
        return plan_run(make_job(engine="torchrun", **fields), facts, run_id=run_id)

    yield make
    for run_id in run_ids:
        target.stop(run_id, 0)


def up(plan: LaunchPlan, index: int = 0) -> bool:
    return (Path(plan.run_dir) / f"up-{index}").exists()


def agents_of(plan: LaunchPlan) -> list[int]:
    """Pids without the mark that torchrun gives its workers."""
    pids = process_table.find(**{RUN_ID: plan.run_id})
    return [p for p in pids if process_table.variable_of(p, "TORCHELASTIC_RUN_ID") is None]


def states(target: LocalTarget, plan: LaunchPlan) -> list[NodeState]:
    return [node.state for node in target.observe(plan).nodes]


def test_another_process_sees_living_nodes_and_how_others_ended(target, make_local, tmp_path):
    plan = make_local(nnodes=2)
    assert states(target, plan) == [NodeState.MISSING] * 2
    target.submit(plan)
    wait_until(lambda: up(plan, 0) and up(plan, 1))
    assert states(target, plan) == [NodeState.RUNNING] * 2
    other = LocalTarget(tmp_path / "runs")
    assert states(other, plan) == [NodeState.RUNNING] * 2
    assert states(other, plan_replacement(plan, 1)) == [NodeState.RUNNING, NodeState.MISSING]
    target.stop(plan.run_id, 5, (1,))
    assert states(other, plan) == [NodeState.RUNNING, NodeState.MISSING]
    outcome = NodeOutcome(
        node_index=1,
        incarnation=0,
        cause=Cause.PREEMPTED,
        started_at=0.0,
        finished_at=1.0,
    )
    Path(plan.nodes[1].log_dir, "outcome.json").write_text(outcome.to_json())
    assert states(other, plan) == [NodeState.RUNNING, NodeState.EXITED]
    assert other.observe(plan).nodes[1].exit_code == 143


def test_exit_codes_are_reported_and_signals_as_a_shell_does(target, make_local):
    quick = make_local(command=["quick"])
    killed = make_local()
    target.submit(quick)
    target.submit(killed)
    wait_until(lambda: up(killed))
    os.kill(agents_of(killed)[0], signal.SIGKILL)
    wait_until(lambda: states(target, quick) == states(target, killed) == [NodeState.EXITED])
    assert target.observe(quick).nodes[0].exit_code == 7
    assert target.observe(killed).nodes[0].exit_code == 137


def test_stopping_leaves_no_process_however_stubborn(target, make_local):
    plan = make_local(nnodes=2)
    target.submit(plan)
    wait_until(lambda: up(plan, 0) and up(plan, 1))
    assert len(process_table.find(**{RUN_ID: plan.run_id})) >= 4
    target.stop(plan.run_id, 5)
    assert process_table.find(**{RUN_ID: plan.run_id}) == ()
    target.stop(plan.run_id, 5)


def test_orphans_of_a_killed_agent_are_found_by_their_run_and_ended(target, make_local):
    plan = make_local()
    target.submit(plan)
    wait_until(lambda: up(plan))
    os.kill(agents_of(plan)[0], signal.SIGKILL)
    wait_until(lambda: states(target, plan) == [NodeState.EXITED])
    assert process_table.find(**{RUN_ID: plan.run_id}), "the worker should have outlived its agent"
    target.stop(plan.run_id, 5)
    assert process_table.find(**{RUN_ID: plan.run_id}) == ()


def test_a_replacement_starts_when_the_old_incarnation_is_dead_and_others_go_on(target, make_local):
    plan = make_local(nnodes="1:2")
    target.submit(plan)
    wait_until(lambda: up(plan, 0) and up(plan, 1))

    def pids(index: int) -> set[int]:
        return set(process_table.find(**{RUN_ID: plan.run_id, NODE_INDEX: str(index)}))

    before = {0: pids(0), 1: pids(1)}
    again = plan_replacement(plan, 1)
    target.submit(again, (1,))
    wait_until(lambda: states(target, again) == [NodeState.RUNNING] * 2)
    assert not before[1] & pids(1)
    assert before[0] & pids(0)
    assert states(target, plan)[1] is NodeState.EXITED


def test_two_runs_at_once_do_not_disturb_each_other(target, make_local, monkeypatch):
    plans = [make_local(), make_local()]
    for plan in plans:
        target.submit(plan)
    wait_until(lambda: all(up(plan) for plan in plans))
    target.stop(plans[0].run_id, 5)
    assert states(target, plans[1]) == [NodeState.RUNNING]
    # A worker's child may end between two looks at it.
    gone, find_runs = subprocess.Popen(["true"]), process_table.find_runs
    gone.wait()
    with_gone = {run_id: (gone.pid, *pids) for run_id, pids in find_runs().items()}
    monkeypatch.setattr(process_table, "find_runs", lambda: with_gone)
    (live,) = (live for live in target.live_runs() if live.run_id == plans[1].run_id)
    assert (live.run_dir, live.running_nodes) == (plans[1].run_dir, 1)


def test_a_program_that_is_missing_is_named_and_nothing_starts(target, make_local):
    plan = replace(make_local(), own=ProcessSettings(python="/no/such/python"))
    with pytest.raises(TargetError, match="cannot start /no/such/python"):
        target.submit(plan)
    assert process_table.find(**{RUN_ID: plan.run_id}) == ()


def test_an_interpreter_without_torch_is_named_with_the_fix(tmp_path):
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho\n")
    bare.chmod(0o755)
    with pytest.raises(TargetError, match="has no torch") as caught:
        read_torch_version(str(bare))
    fix = f"{bare} -m pip install torch; or name another interpreter: --set local.python=PATH"
    assert caught.value.hint == fix


def test_a_program_that_is_no_python_is_not_told_to_install_torch():
    with pytest.raises(TargetError) as caught:
        read_torch_version("/bin/sh")
    assert str(caught.value) == (
        "/bin/sh does not run here as a Python interpreter\n"
        "  fix: name one: --set local.python=PATH"
    )


def test_a_free_port_is_free_and_rarely_the_same(monkeypatch):
    import random

    ports = {find_free_ports(random.Random(seed), 1) for seed in range(20)}
    assert len(ports) > 15
    assert len(set(find_free_ports(random.Random(0), 3))) == 3
    assert all(20000 <= port < 32000 for (port,) in ports)


@pytest.mark.parametrize(
    ("visible", "expected"), [("", ()), ("-1", ()), ("0,2", ("0", "2")), ("GPU-1f", ("GPU-1f",))]
)
def test_the_callers_choice_of_gpus_is_kept(monkeypatch, visible, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert read_gpus() == expected
