from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from launcher.contract.reasons import Reason
from launcher.contract.records import parse_record
from launcher.contract.typed import as_called
from launcher.contract.worker_end import WorkerEnd
from launcher.runs.outcome import FailureReport, Outcome
from launcher.runs.reason import decide_reason
from launcher.runs.summary import COLLATERAL_LINES, render_summary
from tests.launcher.worker_ends import worker_end


def summary(
    reason: Reason, hosts: str | None = None, image: str = "", python: str = "", **fields: Any
) -> str:
    defaults: dict[str, Any] = {
        "run_id": "digits-0a1b2c",
        "job": "digits",
        "target": "local",
        "reason": reason,
        "finished_at": 12.5,
        "checkpoint_dir": "/runs/digits-0a1b2c/checkpoints",
        "torch_version": "2.13.0",
    }
    outcome = Outcome(**{**defaults, **fields})
    job = ("digits.yaml", "--on", outcome.target, *(("--hosts", hosts) if hosts else ()))
    with as_called(".venv/bin/launcher"):
        return render_summary(
            outcome, folder="runs/digits-0a1b2c", job=job, image=image, python=python
        )


def rank(number: int, exception: str) -> WorkerEnd:
    node_index, local_rank = divmod(number, 2)
    return worker_end(
        number,
        exception,
        node_index=node_index,
        local_rank=local_rank,
        log=f"/logs/{number}/stderr.log",
        log_tail=("Traceback", exception),
    )


def report(
    first: WorkerEnd | None = None, *others: WorkerEnd, console_tail: tuple[str, ...] = ()
) -> FailureReport:
    return FailureReport(first=first, collateral=others, console_tail=console_tail)


def test_a_success_shows_its_results_and_where_everything_is() -> None:
    text = summary(
        Reason.COMPLETED, metrics={"test_accuracy": 0.98765, "samples_per_s": 1234.5, "steps": 9}
    )
    assert "SUCCEEDED digits-0a1b2c: completed" in text
    assert "accuracy     0.9877" in text
    assert "12.5 s, 1234 samples/s" in text
    assert "runs/digits-0a1b2c/outcome.json" in text
    assert "/runs/digits-0a1b2c/checkpoints" in text


def test_next_commands_are_shown_as_one_types_them() -> None:
    text = summary(Reason.COMPLETED, metrics={"steps": 9})
    assert ".venv/bin/launcher logs digits-0a1b2c" in text
    assert ".venv/bin/launcher run digits.yaml --on local --resume digits-0a1b2c" in text
    assert ".venv/bin/launcher render digits.yaml --on local" in text

    text = summary(Reason.COMPLETED, "gpu[1-4]", target="hosts", metrics={"steps": 9})
    assert "render digits.yaml --on hosts --hosts 'gpu[1-4]'" in text
    assert "run digits.yaml --on hosts --hosts 'gpu[1-4]' --resume digits-0a1b2c" in text
    assert "--resume" not in summary(Reason.COMPLETED), "a script without checkpoints"


def test_restarts_are_shown_by_cause_where_there_were_any() -> None:
    text = summary(Reason.COMPLETED, restarts={"membership": 2, "worker-fault": 1})
    assert "  restarts     membership 2, worker-fault 1 (over all nodes)" in text
    assert ".venv/bin/launcher report digits-0a1b2c" in text
    assert "restarts" not in summary(Reason.COMPLETED)


def test_a_failure_names_whose_fault_it_is_its_cause_and_what_fell_with_it() -> None:
    peer = rank(0, "RuntimeError: Connection closed by peer")
    failure = report(rank(3, "ValueError: boom"), peer)
    lines = summary(Reason.RESTARTS_EXHAUSTED, failure=failure, attempts=4).splitlines()
    assert lines[1].startswith("FAILED digits-0a1b2c: restarts-exhausted (fault: training")
    assert "attempts: 4" in lines[1]
    assert lines[2] == "  first failure: rank 3 on node 1: ValueError: boom"
    assert lines[5] == "    log: /logs/3/stderr.log"
    assert lines[6].startswith("  failed after it: rank 0 on node 0: RuntimeError")


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ("rank 3: exit code 1 (ValueError: boom)", "(fault: training)"),
        ("last: rank 0: signal 15 (RuntimeError: closed (by: peer))", "(fault: training)"),
        (
            "the same failure 3 times without progress: rank 3: exit code 1 (ValueError: boom)",
            "(the same failure 3 times without progress; fault: training)",
        ),
        (
            "all 2 restarts are used up; last: rank 0: SIGABRT (6)",
            "(all 2 restarts are used up; fault: training)",
        ),
    ],
)
def test_the_cause_is_told_once_and_never_by_a_worker_that_only_fell(
    detail: str, told: str
) -> None:
    failure = report(rank(3, "ValueError: boom"))
    text = summary(Reason.RESTARTS_EXHAUSTED, failure=failure, detail=detail)
    assert text.splitlines()[1] == f"FAILED digits-0a1b2c: restarts-exhausted {told}"
    assert text.count("ValueError: boom") == 2, "the line of the first failure, and its log"
    assert detail in summary(Reason.RESTARTS_EXHAUSTED, failure=report(), detail=detail)


def test_a_module_that_the_launchers_own_image_lacks_is_told_with_the_fix() -> None:
    failure = report(rank(0, "ModuleNotFoundError: No module named 'transformers'"))
    told = summary(Reason.TRAINING_FAILED, failure=failure, image="fabric-train:cpu")
    fix = next(line for line in told.splitlines() if line.startswith("  fix: "))
    assert "fabric-train:cpu has no transformers: .venv/bin/launcher build --base" in fix
    assert "--image REF" in fix
    assert "--on local" in fix
    # The job's own image is its author's to mend.
    assert "fix: " not in summary(Reason.TRAINING_FAILED, failure=failure)


def test_a_module_that_the_local_python_lacks_is_told_with_the_fix() -> None:
    failure = report(rank(0, "ModuleNotFoundError: No module named 'transformers.models'"))
    told = summary(Reason.TRAINING_FAILED, failure=failure, python="/my env/bin/python")
    fix = next(line for line in told.splitlines() if line.startswith("  fix: "))
    assert "/my env/bin/python has no transformers.models: " in fix
    assert "'/my env/bin/python' -m pip install transformers;" in fix
    assert "--set local.python=PATH" in fix
    failure = report(rank(0, "ValueError: boom"))
    assert "fix: " not in summary(Reason.TRAINING_FAILED, failure=failure, python="/bin/python")


def test_arguments_that_no_worker_takes_are_told_once() -> None:
    said = "t.py: error: unrecognized arguments: --foo 1"
    first = replace(rank(0, "exit code 2"), exit_code=2, log_tail=("usage: t.py [-h]", said))
    fallen = replace(rank(1, "ended by its agent"), cause="terminated", exit_code=-15)
    failure = FailureReport(first=first, collateral=(fallen,), console_tail=())
    seen = Outcome(reason=Reason.BAD_INPUT, detail="rank 0: exit code 2")
    detail = decide_reason(seen, (), first).detail
    text = summary(Reason.BAD_INPUT, failure=failure, detail=detail)
    assert f"bad-input (rank 0: {said}; fault: user)\n    log: {first.log}\n" in text
    assert "usage" not in text
    assert "rank 1" not in text


def test_exit_code_2_of_a_script_that_says_no_reason_is_told_as_any_other() -> None:
    first = replace(rank(0, "exit code 2"), exit_code=2, log="/r/stdout", log_tail=("epoch 1",))
    seen = Outcome(reason=Reason.BAD_INPUT, detail="rank 0: exit code 2")
    detail = decide_reason(seen, (), first).detail
    text = summary(Reason.BAD_INPUT, failure=report(first), detail=detail)
    assert "bad-input (fault: user)\n  first failure: rank 0 on node 0: exit code 2\n" in text
    assert "    | epoch 1\n" in text


def test_workers_that_missed_a_lost_node_are_not_told_as_the_first_failure() -> None:
    lost = {"detail": "node 1 ended with exit code 137"}
    failure = report(rank(0, "RuntimeError: Connection closed by peer"))
    text = summary(Reason.NODE_LOST, failure=failure, **lost)
    assert "node-lost (node 1 ended with exit code 137; fault: platform)" in text
    assert "first failure" not in text
    assert "  failed after it: rank 0 on node 0: RuntimeError: Connection closed by peer" in text
    failure = report(rank(0, "ValueError: boom"))
    assert "first failure: rank 0" in summary(Reason.NODE_LOST, failure=failure, **lost)


def test_where_no_worker_spoke_the_agents_words_are_shown() -> None:
    failure = report(console_tail=("error: no such option",))
    assert "    | error: no such option" in summary(Reason.TRAINING_FAILED, failure=failure)


def test_of_many_that_fell_only_some_are_shown() -> None:
    others = (rank(number, "RuntimeError: Connection closed by peer") for number in range(1, 64))
    text = summary(Reason.TRAINING_FAILED, failure=report(rank(0, "ValueError: boom"), *others))
    assert text.count("failed after it: ") == COLLATERAL_LINES
    assert (
        f"  and {63 - COLLATERAL_LINES} more; all of them: .venv/bin/launcher report --json" in text
    )


def test_an_outcome_is_read_back_as_it_was_written() -> None:
    failure = report(rank(1, "ValueError: boom"), rank(0, "peer"), console_tail=("a", "b"))
    outcome = Outcome(
        run_id="x-1", job="x", target="local", reason=Reason.NODE_LOST, finished_at=1.0,
        metrics={"loss": 1.0}, failure=failure, restarts={"hang": 1},
    )  # fmt: skip
    assert parse_record(Outcome, json.loads(json.dumps(outcome.to_jsonable()))) == outcome
