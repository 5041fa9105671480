"""The text that ends a run, whole for each kind of ending."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.contract.causes import Cause
from launcher.contract.ending import Ending, WorkerEnd
from launcher.contract.records import parse_record
from launcher.contract.typed import as_called
from launcher.follow.endings import judge_run
from launcher.runs.outcome import FailureReport, Outcome
from launcher.runs.summary import render_summary
from tests.launcher.worker_ends import worker_end

PEER = "RuntimeError: Connection closed by peer"
JOB = ("digits.yaml", "--on", "local")
HOSTS = ("digits.yaml", "--on", "hosts", "--hosts", "gpu[1-4]")


def rank(number: int, exception: str, **fields: Any) -> WorkerEnd:
    node_index, local_rank = divmod(number, 2)
    told = {"log": f"/logs/{number}/stderr", "log_tail": ("Traceback", exception), **fields}
    return worker_end(number, exception, node_index=node_index, local_rank=local_rank, **told)


def report(
    first: WorkerEnd | None = None, *others: WorkerEnd, console_tail: tuple[str, ...] = ()
) -> FailureReport:
    return FailureReport(first=first, collateral=others, console_tail=console_tail)


def failed(*details: str, **fields: Any) -> dict[str, Any]:
    """With the detail that is decided of what the driver saw."""
    told: dict[str, Any] = {"cause": Cause.TRAINING_FAILED, "failure": report(BOOM), **fields}
    seen = Ending(cause=told["cause"], detail="; ".join(details))
    return told | {"detail": judge_run(seen, (), told["failure"].first).detail}


BOOM = rank(3, "ValueError: boom")
NO_MODULE = rank(0, "ModuleNotFoundError: No module named 'transformers.models'")
UNKNOWN = "t.py: error: unrecognized arguments: --foo 1"
USAGE = rank(0, "exit code 2", exit_code=2, log_tail=("usage: t.py [-h]", UNKNOWN))
FALLEN = rank(1, "ended by its agent", cause="terminated", exit_code=-15)
DONE: dict[str, Any] = {"cause": Cause.COMPLETED, "metrics": {"steps": 9}}
BAD: dict[str, Any] = {"cause": Cause.BAD_INPUT}
LOST = {"cause": Cause.NODE_LOST, "detail": "node 1 ended with exit code 137"}
CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "done": (
        {**DONE, "metrics": {"test_accuracy": 0.98765, "samples_per_s": 1234.5, "steps": 9}},
        {"extra": ("--lr", "0.1 0.2"), "resumed": "digits-000000"},
    ),
    "done; what could not be read of its metrics": (
        {**DONE, "metrics": {"left_out": "all of metrics.json: no", "checkpoint": "/x"}},
        {"resumes_by_run": False},
    ),
    "done; no checkpoints": ({"cause": Cause.COMPLETED, "checkpoint_dir": ""}, {}),
    "done on hosts, with restarts": (
        {**DONE, "restarts": {"membership": 2, "worker-fault": 1}, "replaced_nodes": 1},
        {"job": HOSTS},
    ),
    "done in a hold, nothing found": (
        {**DONE, "replaced_nodes": 2}, {"job": (*JOB, "--in", "held"), "left": ()},
    ),
    "stopped, with checkpoints of a script of one's own": (
        {"cause": Cause.INTERRUPTED, "metrics": {}}, {"has_checkpoints": True},
    ),
    "stopped before the first checkpoint": (
        {"cause": Cause.STOP_REQUESTED, "metrics": {}, "checkpoint_dir": ""}, {},
    ),
    "failed": (
        failed(attempts=4, failure=report(replace(BOOM, attempt=2), rank(0, PEER)),
               verdict="script-error (certain)", metrics={"checkpoint": "/x"}), {},
    ),
    "failed the same way": (
        failed("the same failure 3 times", cause=Cause.RESTARTS_EXHAUSTED), {},
    ),
    "failed; its node says more": (failed("all 2 restarts are used up"), {}),
    "failed; an older node names the worker too": (
        failed("all 2 restarts are used up; last: rank 0: SIGABRT (6)"), {},
    ),
    "no worker spoke": (
        failed("rank 0: out of memory", failure=report(console_tail=("error: no", "option"))), {},
    ),
    "nobody spoke": (failed(failure=report()), {}),
    "many fell": (failed(failure=report(BOOM, *(rank(n, PEER) for n in range(4, 13)))), {}),
    "left early": (
        failed(failure=report(replace(BOOM, cause=Cause.EXITED_EARLY), rank(0, PEER))), {},
    ),
    "a node was lost, and its peers missed it": (
        LOST | {"failure": report(rank(0, PEER, host="a", clock_offset_s=2.26),
                                  rank(1, PEER, host="b", clock_offset_s=-1.5),
                                  rank(2, PEER, host="c", clock_offset_s=1.0))}, {},
    ),
    "a node was lost after a failure": (LOST | {"failure": report(BOOM)}, {}),
    "bad arguments": (failed("rank 0: exit code 2", **BAD, failure=report(USAGE, FALLEN)), {}),
    "bad arguments; one failed otherwise": (failed(**BAD, failure=report(USAGE, BOOM)), {}),
    "bad arguments after a step": (failed(**BAD, failure=report(replace(USAGE, steps=1))), {}),
    "exit code 2 without words": (
        failed(**BAD, failure=report(replace(USAGE, log="/r/stdout", log_tail=("epoch 1",)))), {},
    ),
}  # fmt: skip
"""Fields of the outcome, and what else the summary is given."""


def test_each_ending_has_its_summary(expect_golden):
    shown = []
    for name, (fields, given) in CASES.items():
        told = {"run_id": "digits-0a1b2c", "job": "digits", "target": "local", "finished_at": 12.5}
        if "metrics" in fields:
            told |= {"checkpoint_dir": "/runs/digits-0a1b2c/checkpoints"}
        given = {"folder": "runs/digits-0a1b2c", "job": JOB, "left": ("outcome", "logs"), **given}
        if not {"metrics", "checkpoint_dir"} & {*fields}:  # where things are is told above
            given |= {"left": ()}
        with as_called(".venv/bin/launcher"):
            lines = render_summary(Outcome(**(told | fields)), **given).splitlines()
        if "metrics" not in fields and "failure" in fields:
            lines = [x for x in lines if not x.startswith(("  duration ", "  render it "))]
        shown.append(f"== {name}" + "\n".join(lines) + "\n")
    expect_golden("summaries.txt", "".join(shown))


def test_an_outcome_is_read_back_as_it_was_written():
    failure = report(rank(1, "ValueError: boom"), rank(0, "peer"), console_tail=("a", "b"))
    outcome = Outcome(
        run_id="x-1", job="x", target="local", cause=Cause.NODE_LOST, finished_at=1.0,
        metrics={"loss": 1.0}, failure=failure, restarts={"hang": 1},
    )  # fmt: skip
    written = json.loads(json.dumps(outcome.to_jsonable()))
    assert parse_record(Outcome, written) == outcome
    told = (written["state"], written["exit_code"], written["duration_s"])
    assert told == ("failed", 137, 1.0)
    assert (
        repr(failure)
        == "<FailureReport rank 1 on node 0: ValueError: boom; 1 more failed after it>"
    )
    assert repr(report(BOOM)) == "<FailureReport rank 3 on node 1: ValueError: boom>"
    assert str(report(BOOM)).startswith("first failure: rank 3 on node 1: ValueError: boom\n  | ")
    early = replace(outcome, started_at=2.0)
    assert (early.duration_s, outcome.fault) == (0.0, "platform")
    assert replace(outcome, cause=Cause.PREEMPTED).fault is None
