"""What scripts do that makes a heal hard, while a node is lost."""

import time

import pytest

from launcher.agent.engine.heal import BROKEN_LIMIT_S
from tests.launcher.agent.group import kill, tree
from tests.launcher.agent.healing import HealingGroup, change, train_alone
from tests.waiting import wait_until

NODE_1_AT_STEP_30 = """
flag = pathlib.Path("did-it")
if node == "1" and step == 30 and not flag.exists():
    flag.touch()
    {}
"""


def test_a_worker_that_fails_by_itself_costs_one_restart_and_the_others_heal(places):
    raising = NODE_1_AT_STEP_30.format('raise ValueError("a mistake")')
    group = HealingGroup(places, change(in_step=raising), {"max_restarts": 1})
    group.start_all()
    group.make_steps(40)
    group.wait_for(*places)
    group.make_steps()
    last, told = group.finish_soon(*places)
    assert told == {train_alone(group.folder / "alone", last)}
    assert [len({s.pid for s in group.steps(index)}) for index in range(3)] == [1, 2, 1]
    restarts = [place.outcome()["restarts"] for place in places]
    assert restarts == [{}, {"worker-fault": 1}, {}]
    assert "[rank1]: [rank1]" not in (places[1].rank(1) / "stderr").read_text()


def test_a_worker_that_hangs_in_its_own_code_is_ended_and_the_others_wait_and_heal(places):
    hanging = NODE_1_AT_STEP_30.format("time.sleep(1000)")
    settings = {"max_restarts": 1, "hang_min_s": 4.0, "hang_factor": 1.0}
    group = HealingGroup(places, change(in_step=hanging), settings)
    group.start_all()
    wait_until((group.folder / "did-it").exists)
    kill(places[2])
    group.wait_for(places[0], places[1])
    group.make_steps()
    last, told = group.finish_soon(places[0], places[1])
    assert told == {train_alone(group.folder / "alone", last)}
    assert len({s.pid for s in group.steps(0)}) == 1, "it waits, and does not hang"


SAVES = (
    change(
        once="from fabric_train import Interval, Saver\n"
        'saver = Saver(pathlib.Path("saved"), interval=Interval(steps=5))'
    )
    .replace(
        "        world.share(model, optimizer)\n",
        "        if world.share(model, optimizer):\n"
        "            saver.take_over()\n"
        "        elif resumed := saver.resume(model, optimizer):\n"
        "            worlds.step = resumed.step\n",
    )
    .replace(
        "            steps.write(",
        "            if saver.is_due(worlds.step):\n"
        "                saver.save(worlds.step, model, optimizer)\n"
        "            steps.write(",
    )
)


def test_a_saver_made_once_saves_in_each_world_whoever_leads_it(places):
    first, second, third = places
    group = HealingGroup(places, SAVES)
    group.start_all()
    group.make_steps(10)
    kill(first)
    group.wait_for(second, third)
    group.make_steps(20)
    saved = max(path.name for path in (group.folder / "saved").glob("step-*"))
    back = group.start_again(first)
    group.wait_for(back, second, third)
    group.make_steps(20)
    assert max(path.name for path in (group.folder / "saved").glob("step-*")) > saved
    last, told = group.finish_soon(back, second, third)
    assert told == {train_alone(group.folder / "alone", last, SAVES)}
    assert [len({s.pid for s in group.steps(index)}) for index in (1, 2)] == [1, 1]


CATCHES = {
    "around the step": change(
        before_step="try:\n    pass\nexcept RuntimeError:\n    pass",
    ).replace(
        "            with world.step():\n",
        "            with __import__('contextlib').suppress(RuntimeError), world.step():\n",
    ),
    "around the sum": change(reduce="").replace(
        "                reduction.finish()\n",
        "                try:\n                    reduction.finish()\n"
        "                except RuntimeError:\n                    print('caught', flush=True)\n",
    ),
}


def test_a_worker_that_hangs_where_the_others_have_gone_on_is_soon_started_anew(places):
    first, second, third = places
    hang = """
hang = pathlib.Path(f"hang-{os.getpid()}")
while hang.exists():
    pathlib.Path("hangs").touch()
    time.sleep(0.01)
"""
    group = HealingGroup(places, change(before_step=hang))
    group.start_all()
    group.make_steps()
    pid = group.steps(1)[-1].pid
    # As a worker that wakes in a collective does in one of fifty times.
    (second.folder / f"hang-{pid}").touch()
    wait_until((second.folder / "hangs").exists)
    frozen = tree(second)
    for process in frozen:
        process.suspend()
    group.wait_for(first, third)
    for process in frozen:
        process.resume()
    group.wait_for(first, second, third)
    group.make_steps()
    assert group.steps(1)[-1].pid != pid
    (restart,) = [event for event in second.events() if event["event"] == "restart"]
    assert restart["cause"] == "membership"
    group.finish_soon(first, second, third)


@pytest.mark.parametrize("where", CATCHES)
def test_a_script_that_catches_the_groups_error_does_not_spoil_the_weights(places, where):
    training = CATCHES[where]
    group = HealingGroup(places, training)
    group.start_all()
    group.make_steps()
    kill(places[2])
    group.wait_for(places[0], places[1])
    group.make_steps()
    last, told = group.finish_soon(places[0], places[1])
    assert told == {train_alone(group.folder / "alone", last)}


HELD = """
from fabric_train.worlds.agent_link import AgentLink

say = AgentLink.say

def hold(link, **message):
    while "formed" in message and node == "0" and pathlib.Path("hold").exists():
        pathlib.Path("held").touch()
        time.sleep(0.02)
    say(link, **message)

AgentLink.say = hold
"""
"""Node 0's worker is the last that knows that a world has formed."""


def test_newcomers_that_are_let_in_while_a_world_forms_cost_no_restart(places):
    first, second, third = places
    group = HealingGroup(places, change(once="").replace("worlds = ", HELD + "worlds = "))
    group.start_all()
    group.make_steps()
    (group.folder / "hold").touch()
    kill(third)
    wait_until((group.folder / "held").exists)
    back = group.start_again(third)
    # Node 1 trains: its world breaks, because node 0 forms the next one.
    wait_until(lambda: "broke" in second.console(), group.describe)
    time.sleep(2 * BROKEN_LIMIT_S)  # by then a break without a successor is a fault
    (group.folder / "hold").unlink()
    group.wait_for(first, second, back)
    group.make_steps()
    last, told = group.finish_soon(first, second, back)
    assert told == {train_alone(group.folder / "alone", last)}
    assert [len({s.pid for s in group.steps(index)}) for index in range(3)] == [1, 1, 2]


def test_a_node_that_freezes_while_newcomers_are_let_in_holds_nobody_up(places):
    first, second, third = places
    group = HealingGroup(places, detection_limit_s="10")
    group.start_all()
    group.make_steps()
    kill(third)
    group.make_steps()
    back = group.start_again(third)
    wait_until(lambda: any(e["event"] == "workers-started" for e in back.events_or_none()))
    frozen = tree(second)
    for process in frozen:
        process.suspend()
    group.wait_for(first, back)
    group.make_steps()
    for process in frozen:
        process.resume()
    group.wait_for(first, second, back)
    group.make_steps()
    last, told = group.finish_soon(first, second, back)
    assert told == {train_alone(group.folder / "alone", last)}


def test_where_no_rank_has_the_state_any_more_the_workers_start_anew(places):
    """All were between the optimizer's step and the end of theirs, and no checkpoint was made."""
    waiting = "torch.distributed.all_reduce(torch.zeros(1))"
    late = (
        "if len(sys.argv) == 1 and step == 30:\n"
        "    pathlib.Path(f'late-{node}').touch()\n    time.sleep(1.0)\n" + waiting
    )
    training = change(after_update=late.replace(waiting, f"if len(sys.argv) == 1: {waiting}"))
    group = HealingGroup(places, training, {"max_restarts": 1})
    group.start_all()
    wait_until(lambda: all((group.folder / f"late-{index}").exists() for index in range(3)))
    kill(places[2])
    group.wait_for(places[0], places[1])
    group.make_steps()
    wait_until(lambda: [s.number for s in group.steps(0)].count(1) == 2)
    last, told = group.finish_soon(places[0], places[1])
    assert told == {train_alone(group.folder / "alone", last)}
    assert "those who had the training's state are gone" in places[0].console()
