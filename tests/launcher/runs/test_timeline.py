import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract import protocol
from launcher.runs.ledger import LedgerEvent
from launcher.runs.timeline import measure_phases, tell_event, tell_timeline

SAMPLES: list[tuple[dict[str, Any], str]] = [
    ({"event": "agent-started"}, "agent started"),
    (
        {
            "event": "installed",
            "versions": {"torch": "2.13.0", "Python": "3.11.9", "code": "0badc0de"},
        },
        "torch 2.13.0, Python 3.11.9, code 0badc0de",
    ),
    ({"event": "rendezvous-began"}, "rendezvous began"),
    ({"event": "rendezvous-ended", "rank": 1, "world_size": 3},
     "rendezvous: node rank 1, world of 3 nodes"),
    ({"event": "rendezvous-ended", "rank": 0, "world_size": 1},
     "rendezvous: node rank 0, world of 1 node"),
    ({"event": "workers-started", "attempt": 0, "ranks": [1]},
     "workers started (attempt 0, rank 1)"),
    ({"event": "workers-started", "attempt": 2, "ranks": [2, 3]},
     "workers started (attempt 2, ranks 2, 3)"),
    ({"event": "first-step"}, "first step"),
    ({"event": "worker-ended", "rank": 3, "exit_code": 1, "cause": "exit"},
     "rank 3 ended: exit code 1"),
    ({"event": "worker-ended", "rank": 0, "exit_code": -9, "cause": "signal"},
     "rank 0 ended: SIGKILL (9)"),
    ({"event": "worker-ended", "rank": 3, "exit_code": -9, "cause": "hang"},
     "rank 3 ended: SIGKILL (9) (hang)"),
    (
        {
            "event": "hang",
            "rank": 2,
            "silent_s": 12.34,
            "limit_s": 10,
            "beat": 31,
            "read_at": [15.34, 17.34],
            "cpu_share": 0.0042,
        },
        "rank 2 hangs: silent for 12.3 s, limit 10.0 s; beat 31 twice in 2.0 s, 0.4% of a core",
    ),
    ({"event": "gpu-wait", "waited_s": 3}, "waited 3.0 s for GPU memory"),
    ({"event": "restart", "cause": "lost-peer"}, "restart: lost-peer"),
    ({"event": "stop-requested", "reason": "preempted"}, "stop requested: preempted"),
    ({"event": "stop-acknowledged", "step": 120}, "stop acknowledged at step 120"),
    ({"event": "node-lost", "detail": "node 1 is lost: silent for 10.0 s"},
     "node 1 is lost: silent for 10.0 s"),
    ({"event": "met-again", "cause": "lost", "rank": 1, "world_size": 2},
     "rendezvous after a loss: node rank 1, world of 2 nodes; its workers stay"),
    ({"event": "met-again", "cause": "of-a-newer-agent", "rank": 0, "world_size": 1},
     "rendezvous again: node rank 0, world of 1 node; its workers stay"),
    ({"event": "healed", "step": 66, "paused_s": 0.7328},
     "goes on with step 66 after a pause of 0.73 s"),
    ({"event": "store-lost", "detail": "the coordinator is gone"},
     "store lost: the coordinator is gone"),
    ({"event": "store-lost"}, "store lost"),
    ({"event": "agent-ended", "cause": "completed", "exit_code": 0},
     "agent ended: completed, exit code 0"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "words"), SAMPLES)
def test_events_are_told_in_words(event, words):
    assert tell_event(event["event"], event) == words


def test_every_event_of_the_contract_has_words():
    source = Path(protocol.__file__).read_text()
    listed = re.search(r"Events: (.*?)\.\"\"\"", source, re.DOTALL)
    names = re.sub(r"\(.*?\)", "", listed[1], flags=re.DOTALL)
    found = {name.strip() for name in names.split(",")}
    assert found == {event["event"] for event, _ in SAMPLES}


@pytest.mark.parametrize(
    "event", [{"event": "of-a-newer-agent"}, {"event": "hang"}, {"event": "restart", "x": 1}]
)
def test_what_is_not_understood_is_told_by_its_name(event):
    assert tell_event(event["event"], event) == event["event"]


def at(event: str, seconds: float, node_index: int = 0) -> LedgerEvent:
    """An event; each node's monotonic clock has a beginning of its own."""
    return LedgerEvent(
        name=event,
        node_index=node_index,
        incarnation=0,
        at=1000 + seconds,
        monotonic_s=77 * node_index + seconds,
        values={},
    )


def test_nodes_are_told_together_from_the_submission_on():
    ended = [
        replace(at("worker-ended", 11), values={"rank": 0, "exit_code": code, "cause": cause})
        for code, cause in ((1, "exit"), (0, "exit"), (-15, "terminated"))
    ]
    events = [at("agent-started", 2.0004), *ended, at("store-lost", 12), at("odd", -3, 1)]
    told = tell_timeline([*events, replace(at("restart", 5, 1), values={"cause": "hang"})], 1000.0)
    assert [(str(moment).split(None, 2), moment.kind) for moment in told] == [
        (["0.00", "1.0", "odd"], ""),
        (["2.00", "0.0", "agent started"], ""),
        (["5.00", "1.0", "restart: hang"], "restart"),
        (["11.00", "0.0", "rank 0 ended: exit code 1"], "fault"),
        (["11.00", "0.0", "rank 0 ended: exit code 0"], ""),
        (["11.00", "0.0", "rank 0 ended: SIGTERM (15) (terminated)"], ""),
        (["12.00", "0.0", "store lost"], "fault"),
    ]
    assert [moment.after_s for moment in told][:2] == [0.0, 2.0]


LIFE = [
    at("agent-started", 0),
    at("rendezvous-began", 1),
    at("rendezvous-ended", 3),
    at("workers-started", 3),
    at("first-step", 7),
    at("worker-ended", 17),
    at("rendezvous-began", 17),
    at("rendezvous-ended", 18),
    at("workers-started", 18),
]


def test_every_second_of_an_agent_belongs_to_one_phase():
    events = [*LIFE, at("first-step", 20), at("agent-ended", 25)]
    phases = measure_phases(events, steps_seen=True, now=None)
    assert phases == {"starting": 7.0, "rendezvous": 3.0, "running": 15.0}
    assert sum(phases.values()) == 25


def test_workers_that_never_tell_their_steps_count_as_running_from_their_start():
    phases = measure_phases([*LIFE[:4], at("agent-ended", 9)], steps_seen=False, now=None)
    assert phases == {"starting": 1.0, "rendezvous": 2.0, "running": 6.0}


def test_a_node_that_runs_is_counted_up_to_now_and_a_killed_one_to_its_last_word():
    assert measure_phases(LIFE[:5], steps_seen=True, now=1010.0)["running"] == 3.0
    assert measure_phases(LIFE[:5], steps_seen=True, now=1006.0)["running"] == 0.0
    assert "running" not in measure_phases(LIFE[:5], steps_seen=True, now=None)
    over = [*LIFE[:5], at("agent-ended", 8.0004)]
    assert measure_phases(over, steps_seen=True, now=1099.0)["running"] == 1.0
