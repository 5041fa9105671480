"""What another version of the launcher or of the agent has written is read as it was meant.

Files leave out what has its default, so a default, a name or a schema number that changes is read
wrongly by what runs already: ``golden/records.txt`` has all of them.
"""

import json
from dataclasses import asdict
from typing import Any

import pytest

import launcher.contract
from launcher.contract import hold, process_stat, protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import NodeOutcome, parse_node_outcome
from launcher.contract.errors import InputError
from launcher.contract.node_plan import (
    DETECTION_LIMIT_S,
    HANG_MAX_S,
    START_LIMIT_S,
    AgentSettings,
    NodeTask,
    parse_task,
)
from launcher.contract.records import dump_record, parse_record
from launcher.contract.reports import look, vitals
from tests.launcher.node_plans import node_plan
from tests.launcher.values import by_place, changeable, records_of
from tests.launcher.worker_ends import worker_end

END = {"attempt": 0, "rank": 1, "local_rank": 1, "exit_code": 1, "failed_at": 2.5}
FRAME, RANK = {"function": "f", "file": "a.py"}, {"rank": 0, "pid": 7}
MEMORY = {"memory_bytes": 1, "memory_limit_bytes": 2}
WRITTEN: dict[type, dict[str, Any]] = {
    hold.User: {"run_id": "a-1", "owner": "me@here"},
    hold.Ready: {"address": "10.0.0.1", "cpu_count": 4},
    hold.StartRun: {"task": "t", "node_dir": "n", "record_dir": "r", "cwd": "/", "env": []},
    hold.EndRun: {"run_id": "a-1", "grace_s": 30},
    look.LookRequest: {"id": "1"},
    look.RankStacks: {"rank": 0, "pid": 7, "threads": [{"frames": [FRAME]}]},
    look.Look: {"id": "1", "at": 2.5, "why": "hang", "attempt": -1, "ranks": [RANK]},
    vitals.GpuVitals: {"name": "0", "model": "H200", "share": 0.5, **MEMORY, "temperature_c": 60},
    vitals.TrainingVitals: {},
    vitals.Vitals: {"at": 2.5, "cpu_share": 0.5, **MEMORY},
}
NUMBERS = (
    *("NODE_OUTCOME_SCHEMA", "LEDGER_SCHEMA", "HEARTBEAT_SLOTS", "TERMINATION_LIMIT_BYTES"),
    *("ALIVE_S", "VITALS_S", "OLDEST_TORCH"),
)


def test_what_is_written_means_what_it_meant(expect_golden):
    read = {k.__name__: asdict(parse_record(k, data)) for k, data in WRITTEN.items()}
    static = {"master_addr": "n-0", "master_port": 29500, "id": "r"}
    node = asdict(node_plan()) | {
        "rendezvous": static,
        "mounts": [{"source": "/a", "target": "/b"}],
    }
    for unsaid in ("incarnation", "workdir", "secrets", "device_ids"):
        del node[unsaid]
    read["NodeTask"] = asdict(parse_task(json.dumps({"schema": 1, "node": node})))
    outcome = {"schema": 2, "node_index": 0, "incarnation": 0, "reason": "killed"}
    ended = {**END, "cause": "exit", "exception": "ValueError", "log": ""}
    found = parse_node_outcome(json.dumps({**outcome, "first": ended}))
    assert found
    read["NodeOutcome"] = {**asdict(found), "exit_code": found.exit_code}
    read["numbers"] = {name: getattr(protocol, name) for name in NUMBERS} | {
        "RECORD_BYTES": process_stat.RECORD_BYTES,
        **{name: getattr(hold, name) for name in ("LEASE_S", "WARN_S")},
        "START_LIMIT_S": START_LIMIT_S,
        "DETECTION_LIMIT_S": DETECTION_LIMIT_S,
        "HANG_MAX_S": HANG_MAX_S,
    }
    lines = (f"{name} {json.dumps(data, default=str)}\n" for name, data in read.items())
    expect_golden("records.txt", "".join(lines))


def test_a_record_is_a_value_and_is_built_by_name():
    assert {*WRITTEN, NodeTask, NodeOutcome} <= {*records_of(launcher.contract)}
    assert (changeable(launcher.contract), by_place(launcher.contract)) == (set(), set())


def test_a_task_is_read_back_as_it_was_and_nothing_else_is():
    settings = AgentSettings(start="fork", preload=("numpy",), health_port=0)
    task = NodeTask(node=node_plan(), settings=settings)
    text = task.to_json()
    assert parse_task(text) == task
    assert text.endswith("}\n")
    assert "stop_grace_s" not in text, "a default"
    for other in ("", "[]", "{}", text.replace('"schema": 1', '"schema": 0')):
        with pytest.raises(InputError, match="the node plan cannot be read") as refused:
            parse_task(other)
        assert refused.value.hint


def test_an_outcome_is_read_back_as_it_was_and_nothing_else_is():
    first, second = worker_end(1, "ValueError: x"), worker_end(0, "peer", failed_at=2.0)
    told = {"cause": Cause.TRAINING_FAILED, "first": first, "collateral": (second,)}
    outcome = NodeOutcome(node_index=3, incarnation=1, restarts={"hang": 2}, **told)
    for text in (outcome.to_json(), outcome.to_json(indent=1)):
        assert parse_node_outcome(text) == outcome
    assert json.loads(outcome.to_json())["exit_code"] == outcome.exit_code == 1
    assert outcome.worker_ends == (first, second)
    well = NodeOutcome(node_index=0, incarnation=0, cause=Cause.COMPLETED)
    assert (well.exit_code, well.worker_ends) == (0, ())
    for other in ("", "[]", "{}", outcome.to_json().replace('"schema": 3', '"schema": 1')):
        assert parse_node_outcome(other) is None


def test_only_what_differs_from_its_default_is_written():
    told = json.loads(dump_record(look.RankLook(rank=0, pid=1, steps=3)))
    assert told == {"rank": 0, "pid": 1, "steps": 3}
