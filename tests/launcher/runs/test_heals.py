"""Losses without a restart: a recorded run of three nodes that lost node 2, then node 0.

Both were replaced, and rank 0 moved to node 1 and back. Lines of progress were left out, and their
samples added to the next line.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.contract import typed
from launcher.contract.causes import Cause
from launcher.runs.folder import RunFolder
from launcher.runs.goodput import measure_goodput
from launcher.runs.heals import find_heals, find_survived, tell_heals
from launcher.runs.ledger import LedgerEvent, agent_ledger, count_restarts, parse_event
from launcher.runs.outcome import Outcome
from launcher.runs.summary import render_summary
from launcher.runs.timeline import measure_phases
from launcher.verdict.evidence import Evidence, read_run
from launcher.verdict.verdict import decide_verdict, render_verdict

ENDED_AT = 175.5
GONE = "the coordinator at 127.0.0.1:20309 is gone"


def read(source: str, name: str) -> list[LedgerEvent]:
    lines = (Path(__file__).with_name("healed") / name).read_text().splitlines()
    return [event for line in lines if (event := parse_event(line, source))]


AGENTS, TRAIN = read("agent", "agents.jsonl"), read("train", "train.jsonl")
HEALS = find_heals(AGENTS)


def test_a_heal_names_the_nodes_that_were_lost_and_its_longest_pause():
    told = [(one.cause, one.num_nodes, one.step, one.paused_s, one.what) for one in HEALS]
    assert told == [
        ("lost", 2, 66, 0.733, "node 2 is lost: its connection closed and its port refuses"),
        ("joined", 3, 148, 0.796, "a node joined"),
        ("first", 2, 184, 0.655, f"{GONE}, and node 0 with it"),
        ("joined", 3, 262, 1.052, "a node joined"),
    ]
    assert tell_heals(HEALS) == {
        "healed": "without a restart 2 times, paused 0.73 s at most",
        "joined": "by newcomers 2 times, paused 1.05 s at most",
    }
    assert tell_heals(HEALS[:1]) == {"healed": "without a restart once, paused 0.73 s"}
    assert not count_restarts(AGENTS)


def without(events: Iterable[LedgerEvent], *names: str) -> list[LedgerEvent]:
    return [event for event in events if event.name not in names]


def change(events: Iterable[LedgerEvent], name: str, **values: object) -> list[LedgerEvent]:
    return [
        replace(each, values={**each.values, **values}) if each.name == name else each
        for each in events
    ]


@pytest.mark.parametrize(
    ("cause", "what"),
    [
        ("lost", "node 2 was lost"),
        ("left", "node 2 left"),
        ("fault", "a worker failed"),
        ("of-a-newer-agent", "node 2 was lost"),
    ],
)
def test_a_loss_of_which_no_agent_spoke_is_named_by_who_fell_silent(cause, what):
    first = [event for event in change(AGENTS, "met-again", cause=cause) if event.at < 60]
    assert [heal.what for heal in find_heals(without(first, "node-lost"))] == [what]


def test_a_node_whose_work_was_done_was_not_lost():
    first = without((event for event in AGENTS if event.at < 60), "node-lost")
    done = replace(first[-1], name="agent-ended", values={"cause": "completed"}, at=50.0)
    ended = [*first, replace(done, node_index=2, incarnation=0)]
    assert [heal.what for heal in find_heals(ended)] == ["a node was lost"]


def test_workers_that_start_anew_have_not_healed():
    assert find_heals(without(AGENTS, "met-again")) == ()
    restarted = [
        replace(event, name="workers-started") if event.name == "met-again" else event
        for event in AGENTS
    ]
    assert find_heals(restarted) == ()


@pytest.mark.parametrize(
    ("after", "has_failed", "is_survived"),
    [
        ("workers-started", True, False),
        ("workers-started", False, True),
        ("first-step", True, True),
        ("healed", True, True),
    ],
)
def test_a_loss_is_survived_once_the_workers_go_on(after, has_failed, is_survived):
    lost = next(event for event in AGENTS if event.name == "node-lost")
    events = [lost, replace(lost, name=after, values={})]
    said = frozenset({lost.values["detail"]})
    survived = find_survived(events, has_failed=has_failed)
    assert survived == (said if is_survived else frozenset())
    assert find_survived([*events, lost], has_failed=has_failed) == frozenset()


def test_a_loss_while_a_newcomer_loads_is_one_heal_with_both():
    both = [e for e in AGENTS if e.at < 103 and not (e.name == "healed" and e.at < 60)]
    assert [(heal.cause, heal.num_nodes) for heal in find_heals(both)] == [("lost", 3)]


def test_a_heal_is_no_start_of_the_training_and_loses_no_step_and_no_sample():
    found = measure_goodput(TRAIN, AGENTS, 0.0, ENDED_AT)
    assert found is not None
    assert (found.starts, found.lost_steps, found.failures) == (1, 0, ())
    sizes = [size for _, size in found.world]
    assert sizes == [0, 3, 2, 3, 2, 3, 0]
    assert all(point.samples == 96 * point.step for point in found.points)
    assert found.seconds["first step"] == pytest.approx(0.651, abs=0.001)
    assert found.seconds["load"] == pytest.approx(0.339, abs=0.001)
    # The longest pauses of the nodes add up to 3.24 s.
    assert 2.6 < found.seconds["healing"] < 3.3
    assert found.seconds["starting"] == pytest.approx(29.617)
    assert sum(found.seconds.values()) == pytest.approx(ENDED_AT)


def test_without_what_was_written_before_a_heal_it_counts_as_a_start():
    later = TRAIN[[event.name for event in TRAIN].index("train-started", 1) :]
    found = measure_goodput(later, AGENTS, 0.0, ENDED_AT)
    assert found is not None
    assert found.starts == 1
    assert sum(found.seconds.values()) == pytest.approx(ENDED_AT)


def test_a_node_that_healed_runs_again():
    own = [event for event in AGENTS if (event.node_index, event.incarnation) == (1, 0)]
    phases = measure_phases(own, steps_seen=True, now=None)
    assert phases["running"] > 130.0


def test_the_end_of_a_run_tells_how_often_it_healed():
    outcome = Outcome(cause=Cause.COMPLETED, run_id="lm-0a1b2c", heals=HEALS, replaced_nodes=2)
    told = render_summary(outcome, folder="runs/lm-0a1b2c", job=("lm.yaml",)).splitlines()
    assert told[2:5] == [
        "  nodes        started again 2 times",
        "  healed       without a restart 2 times, paused 0.73 s at most",
        "  joined       by newcomers 2 times, paused 1.05 s at most",
    ]
    assert any(line.startswith("  report ") for line in told)


def test_why_names_the_nodes_of_the_losses_that_a_run_survived():
    def why(state: str, *heals: int) -> str:
        evidence = Evidence(subject="lm-0a1b2c", state=state, heals=tuple(HEALS[n] for n in heals))
        return render_verdict(decide_verdict(evidence))

    lost = f"  healed: {HEALS[0].what}; 2 nodes went on with step 66 after 0.73 s\n"
    gone = f"  healed: {GONE}, and node 0 with it; 2 nodes went on with step 184 after 0.66 s\n"
    assert why("succeeded", 0, 1, 2, 3) == f"lm-0a1b2c (succeeded): it ended well\n{lost}{gone}"
    assert why("running", 2).endswith(
        f"no failure so far; launcher stacks lm-0a1b2c tells where its ranks are\n{gone}"
    )
    earlier = f"  healed 2 times before: {typed.command('report', 'lm-0a1b2c')}\n"
    assert why("succeeded", 0, 0, 2, 2, 2).endswith(f"it ended well\n{earlier}{gone * 3}")
    assert "healed" not in why("failed", 0)


@pytest.mark.parametrize(("until", "cause"), [(ENDED_AT, "unknown"), (57.2, "node-lost")])
def test_why_blames_no_loss_from_which_the_workers_went_on(until, cause, tmp_path):
    run = RunFolder(tmp_path / "lm-0a1b2c")
    for node in (0, 1):
        ledger, console = agent_ledger(run, node, 0), run.console(node, 0)
        for path in (ledger, console):
            path.parent.mkdir(parents=True, exist_ok=True)
        events = [e.values for e in AGENTS if (e.node_index, e.incarnation) == (node, 0)]
        told = [event for event in events if event["at"] < until]
        ledger.write_text("".join(f"{json.dumps(event)}\n" for event in told))
        lost = [event["detail"] for event in told if event["event"].endswith("-lost")]
        console.write_text("".join(f"[agent] {loss}\n" for loss in lost))
    assert decide_verdict(read_run(run, state="running")).cause == cause
