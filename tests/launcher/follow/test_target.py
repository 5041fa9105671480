"""What holds for a target that says no more than it has to."""

from dataclasses import asdict

import pytest

from launcher.agent.node.supervisor import write_outcome
from launcher.contract.causes import Cause, NodeState
from launcher.contract.ending import NodeOutcome
from launcher.contract.errors import InputError
from launcher.follow.target import Door, NodeObservation, Target, Traits
from launcher.runs.folder import RunFolder
from tests.launcher.follow.test_agent import ScriptedTarget
from tests.launcher.worker_ends import worker_end
from tests.waiting import StoppedClock


def test_a_target_without_what_each_needs_is_refused_before_it_is_asked_anything():
    with pytest.raises(TypeError, match=r"facts.*observe.*render.*stop.*submit"):
        type("Empty", (Target,), {})()


def test_a_plain_target_promises_nothing(tmp_path, make_job, make_plan):
    target, plan, run = ScriptedTarget(StoppedClock(), []), make_plan(), RunFolder(tmp_path)
    assert {name for name, value in asdict(Traits()).items() if value} == {
        "sees_other_machines",
        "held_by",
    }
    assert (target.is_sending, target.has_image(make_job())) == (False, True)
    assert target.scale(run, plan, 2) is False
    assert target.suspension(plan) is None
    with pytest.raises(InputError, match="no program can be started in nodes of local"):
        target.door(plan, 0)


def test_a_shell_behind_a_door_gets_the_program_as_one_word():
    for by_shell, words in ((False, ("echo", "a b")), (True, ("echo 'a b'",))):
        door = Door(
            words=("ssh", "a"), at_terminal=("ssh", "-t", "a"), python="", archive="",
            **({"by_shell": True} if by_shell else {}),
        )  # fmt: skip
        assert door.command(("echo", "a b")) == ("ssh", "a", *words)
        assert door.command(("echo", "a b"), terminal=True) == ("ssh", "-t", "a", *words)


@pytest.mark.parametrize(
    ("state", "is_oom", "end", "told"),
    [
        (NodeState.RUNNING, False, 1, (NodeState.RUNNING, None, False)),
        (NodeState.MISSING, False, 1, (NodeState.EXITED, 1, False)),
        (NodeState.EXITED, True, 1, (NodeState.EXITED, None, False)),
        (NodeState.EXITED, True, -9, (NodeState.EXITED, None, True)),
        (NodeState.EXITED, True, None, (NodeState.EXITED, None, True)),
        (NodeState.MISSING, False, None, (NodeState.MISSING, None, False)),
    ],
)
def test_what_a_nodes_agent_has_written_corrects_what_its_target_saw(
    tmp_path, state, is_oom, end, told
):
    run = RunFolder(tmp_path)
    if end is not None:
        run.node_dir(0, 2).mkdir(parents=True)
        first = worker_end(exit_code=end)
        outcome = NodeOutcome(node_index=0, incarnation=2, cause=Cause.TRAINING_FAILED, first=first)
        write_outcome(run.node_dir(0, 2) / "outcome.json", outcome)
    seen = NodeObservation(node_index=0, incarnation=2, state=state, out_of_memory=is_oom)
    now = seen.with_outcome(run)
    assert (now.state, now.exit_code, now.out_of_memory) == told
