"""What is read of runs that are half there, of huge logs, and of logs of torchrun."""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.agent.node.supervisor import write_outcome
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import NodeOutcome, WorkerEnd
from launcher.contract.reports.look import RankLook
from launcher.runs.failure import decide_report
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import tell_moment
from launcher.verdict.evidence import Evidence, LogReading, read_run
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.standstill import Standing
from launcher.verdict.torchrun_logs import read_file, read_folder, read_stdin
from launcher.verdict.verdict import Verdict, decide_verdict, render_line, render_verdict
from tests.faults.corpus import find_fault
from tests.launcher.looks import write_look
from tests.launcher.torchrun_report import report, worker
from tests.launcher.worker_ends import worker_end

TRACEBACK = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/code/train.py", line 12, in <module>
[rank{rank}]:     {call}
[rank{rank}]: {exception}
"""
LOST_PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:54949."


def traceback(rank: int, exception: str, call: str = "step()") -> str:
    return TRACEBACK.format(rank=rank, exception=exception, call=call)


def judge(text: str) -> Verdict:
    return decide_verdict(read_stdin(io.BytesIO(text.encode())))


def ended_run(root: Path) -> RunFolder:
    """A run of two ranks; rank 1 raised, as an agent leaves it, without plan and outcome."""
    for rank, code, exception in ((0, -15, LOST_PEER), (1, 1, "ValueError: bad batch")):
        folder = root / f"run-1/nodes/0/0/attempt-0/rank-{rank}"
        folder.mkdir(parents=True)
        (folder / "stderr").write_text(traceback(rank, exception))
        end = {"attempt": 0, "rank": rank, "local_rank": rank, "exit_code": code, "log": ""}
        end |= {"failed_at": 9.0 - rank, "exception": exception}
        end |= {"cause": "terminated" if code < 0 else "exit"}
        (folder / "exit.json").write_text(json.dumps(end))
    return RunFolder(root / "run-1")


def verdict_of(run: RunFolder) -> Verdict:
    return decide_verdict(read_run(run))


def test_half_a_run_without_its_plan_has_a_verdict_that_says_what_is_missing(tmp_path):
    told = verdict_of(ended_run(tmp_path))
    assert (told.cause, told.certainty) == (Cause.SCRIPT_ERROR, "certain")
    assert (told.node, told.rank, told.place) == (0, 1, "train.py:12")
    assert told.fell == (0,)
    assert "plan.json is not there" in told.missing


@pytest.mark.parametrize("fault", ["stopped-from-another-terminal", "slurm-time-limit"])
def test_a_stop_is_told_also_where_the_run_left_no_outcome(fault, tmp_path):
    shutil.copytree(find_fault(fault).recording, tmp_path / fault)
    (tmp_path / fault / "outcome.json").unlink()
    for recorded in (tmp_path / fault).glob("stop-request"):  # by the name of its time
        recorded.rename(recorded.with_name(protocol.STOP_RUN_FILE))
    told = decide_verdict(read_run(RunFolder(tmp_path / fault)))
    assert told.cause.value in (find_fault(fault).cause, *find_fault(fault).also)


def test_an_empty_folder_has_a_verdict(tmp_path):
    told = verdict_of(RunFolder(tmp_path))
    assert (told.cause, told.certainty) == (Cause.UNKNOWN, "unclear")
    assert "no log of a worker or a node" in told.missing


@pytest.mark.parametrize("name", ["plan.json", "outcome.json"])
def test_a_file_of_an_older_version_counts_as_missing(tmp_path, name):
    run = ended_run(tmp_path)
    (run.path / name).write_text('{"schema": 0, "failure": 7}')
    told = verdict_of(run)
    assert told.cause is Cause.SCRIPT_ERROR
    assert any(name in missing for missing in told.missing)


def test_torn_ledgers_and_cut_files_are_read_as_far_as_they_go(tmp_path):
    run = ended_run(tmp_path)
    ledger = run.path / "ledger"
    ledger.mkdir()
    (ledger / "agent-0-0.jsonl").write_text('{"source": "agent", "event": "hang", "at": 1.0')
    (ledger / "pods.jsonl").write_bytes(b"\xff\xfe{]\n" * 3)
    rank = run.path / "nodes/0/0/attempt-0/rank-1"
    (rank / "error.json").write_text('{"message": {"message": "Val')
    (rank / "exit.json").write_text("")
    assert verdict_of(run).cause is Cause.SCRIPT_ERROR


def test_a_clock_that_jumped_is_named_where_nothing_else_is(tmp_path):
    ledger = tmp_path / "run/ledger/agent-0-0.jsonl"
    ledger.parent.mkdir(parents=True)
    (tmp_path / "run/nodes/0/0").mkdir(parents=True)
    event = {"source": "agent", "node_index": 0, "incarnation": 0, "event": "agent-started"}
    times = ((1000.0, 10.0), (1001.0, 11.0), (4602.0, 12.0))
    lines = [json.dumps({**event, "at": at, "monotonic_s": since}) for at, since in times]
    ledger.write_text("\n".join(lines))
    told = verdict_of(RunFolder(tmp_path / "run"))
    assert (told.cause, told.node) == (Cause.CLOCK_JUMP, 0)
    assert "+3600 s" in told.what


def test_code_that_is_not_the_same_on_all_nodes_is_named_before_what_it_leads_to(tmp_path):
    (tmp_path / "run/ledger").mkdir(parents=True)
    for node in range(3):
        rank = tmp_path / f"run/nodes/{node}/0/attempt-0/rank-{node}"
        rank.mkdir(parents=True)
        event = {"source": "agent", "node_index": node, "incarnation": 0, "event": "installed"}
        versions = {"torch": "2.13.0", "code": "0badc0de0bad" if node == 1 else "600dc0de600d"}
        event |= {"at": 5.0, "monotonic_s": 1.0, "versions": versions}
        (tmp_path / f"run/ledger/agent-{node}-0.jsonl").write_text(json.dumps(event))
        said = "RuntimeError: ranks 0 and 1 are in different collectives"
        (rank / "stderr").write_text(traceback(node, said))
    told = verdict_of(RunFolder(tmp_path / "run"))
    assert (told.cause, told.node) == (Cause.CODE_MISMATCH, 1)
    assert told.what == "the nodes differ in code: 0badc0de0bad and 600dc0de600d"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may become another user")
def test_a_file_that_may_not_be_read_is_told():
    with tempfile.TemporaryDirectory() as root:
        run = ended_run(Path(root))
        Path(root).chmod(0o755)
        (run.path / "nodes/0/0/attempt-0/rank-0/stderr").chmod(0)
        os.seteuid(65534)
        try:
            told = verdict_of(run)
        finally:
            os.seteuid(0)
    assert told.cause is Cause.SCRIPT_ERROR
    assert "nodes/0/0/attempt-0/rank-0/stderr: Permission denied" in told.missing


def test_a_run_of_10_gb_is_judged_in_10_s_and_200_mb(tmp_path):
    run = ended_run(tmp_path)
    log = run.path / "nodes/0/0/attempt-0/rank-1/stderr"
    line = b"step 1200 loss 2.31 error 0.01 lr 1e-4 time 0.3 s\n"
    with log.open("wb") as file:
        file.write(line * 40_000)
        file.seek(10 << 30)  # a hole: it costs no disk
        file.write(b"\n" + line * 40_000 + traceback(1, "ValueError: bad batch").encode())
    code = "from pathlib import Path; from launcher.api.why import read_path"
    code += "; from launcher.verdict.verdict import decide_verdict as decide"
    code += f"; print(decide(read_path(Path({str(run.path)!r}))).place)"
    # Not of getrusage, which begins with what the parent had.
    code += "; print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    began = time.monotonic()
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    place, kb = told.stdout.split()
    assert place == "train.py:12"
    assert int(kb) < 200 << 10
    assert time.monotonic() - began < 60, "10 s on a machine that does nothing else"


def test_what_was_not_read_of_a_long_log_is_told(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * (20 << 20))
    told = decide_verdict(read_file(log))
    assert told.missing == ("15MiB in the middle of log",)


def tell(run: RunFolder, node: int, incarnation: int, at: float, text: str) -> None:
    tell_moment(run, node, incarnation, at=at, text=text)


def test_what_was_said_of_nodes_counts_until_they_start_and_of_their_last_life(tmp_path):
    run = RunFolder(tmp_path / "run")
    for place in ("0/0", "0/1", "1/0"):
        (run.path / "nodes" / place).mkdir(parents=True)
    for node, incarnation, at, text in (
        (0, 0, 1.0, "pod a: an earlier life"),
        (0, 1, 2.0, "pod a: before it began"),
        (0, 1, 6.0, "pod a: evicted"),
        (1, 0, 6.0, "job 7 waits in the queue: Priority"),
        (1, 0, 7.0, "job 7 waits in the queue: Resources"),
        (1, 0, 7.0, "job 7_1 waits in the queue: Resources"),
        (2, 0, 8.0, "pod c: \x1b[31mpending\x07"),
        (3, 0, 8.0, "x ended: exit code 137"),
        (3, 1, 8.0, "x ended: exit code 137"),
    ):
        tell(run, node, incarnation, at, text)
    began = {"source": "agent", "node_index": 0, "incarnation": 1, "event": "agent-started"}
    line = json.dumps({**began, "at": 5.0, "monotonic_s": 1.0})
    (run.path / "ledger/agent-0-1.jsonl").write_text(line)
    evidence = read_run(run, state="running", nodes={4: "pending: no room"})
    assert [(one.text, one.node, one.at) for one in evidence.lines] == [
        ("pod a: evicted", 0, 6.0),
        ("job 7 waits in the queue: Resources", None, 7.0),
        ("job 7_1 waits in the queue: Resources", 1, 7.0),
        ("pod c: pending\\x07", 2, 8.0),
        ("x ended: exit code 137", 3, 8.0),
        ("x ended: exit code 137", 3, 8.0),
        ("pending: no room", 4, 0.0),
    ]
    assert (evidence.subject, evidence.state, evidence.run_cause) == ("run", "running", None)
    assert evidence.missing == ("plan.json is not there", "no log of a worker or a node")
    (run.path / "stop-run").touch()
    assert read_run(run).run_cause is Cause.STOP_REQUESTED


def test_a_preempted_node_says_why_a_run_without_an_outcome_ended(tmp_path):
    for reason, told in ((Cause.PREEMPTED, Cause.PREEMPTED), (Cause.NODE_LOST, None)):
        folder = tmp_path / reason / "nodes/1/0"
        folder.mkdir(parents=True)
        times = {"started_at": 1.0, "finished_at": 2.0}
        outcome = NodeOutcome(node_index=1, incarnation=0, cause=reason, **times)
        write_outcome(folder / "outcome.json", outcome)
        assert read_run(RunFolder(tmp_path / reason)).run_cause is told


def test_a_person_who_interrupts_a_run_explains_what_looks_like_a_stop():
    lines = (
        LogLine(file="slurm/7.log", text="error: *** JOB 7 ON n1 CANCELLED DUE TO JOB REQUEUE ***"),
        LogLine(file="slurm/7.log", text="*** JOB 7 ON n1 CANCELLED DUE TO TIME LIMIT ***"),
    )
    run = Evidence(subject="x", state="stopped", lines=lines)
    assert decide_verdict(run).cause is Cause.TIME_LIMIT
    asked = decide_verdict(replace(run, run_cause=Cause.INTERRUPTED))
    assert (asked.cause, asked.what) == (Cause.STOPPED_BY_USER, "interrupted")


def test_a_run_that_ended_with_its_launcher_says_so():
    told = decide_verdict(Evidence(subject="x", state="stopped", run_cause=Cause.LAUNCHER_LOST))
    assert (told.cause, told.certainty) == (Cause.LAUNCHER_LOST, "likely")


def test_a_run_is_read_with_its_plan_its_settings_and_the_names_of_its_hosts(
    tmp_path, make_plan, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    run, plan = RunFolder(tmp_path / "digits-0a1b2c"), make_plan(env={"HTTPS_PROXY": "x", "Y": "1"})
    run.create(plan, "", 9.0)
    evidence = read_run(run)
    assert [(one.file, one.text) for one in evidence.lines] == [
        ("settings", "HTTPS_PROXY is set"),
        ("submitted.json", "submitted, and no node has started"),
    ]
    assert (evidence.only_node, evidence.missing) == (0, ("no log of a worker or a node",))
    (run.path / "slurm").mkdir()
    (run.path / "slurm/0.started").write_text("cn7 cn9")
    (run.path / "slurm/1.started").write_text("cn8")
    (run.path / "slurm/node-3.log").write_text("error: of its file\n")
    (run.path / "launcher.log").write_text("error on cn9\nerror on cn8\nerror on digits-0a1b2c-0\n")
    rank = run.path / "nodes/0/0/attempt-0/rank-0"
    rank.mkdir(parents=True)
    (rank / "stdout").write_text("error: a\n")
    (rank / "stderr").write_text("error: b\n")
    console = "[0/0] error: of a worker\nrank 0: error: repeated\nthe agent's error\n"
    (run.path / "nodes/0/0/console.log").write_text(console)
    two = make_plan(nnodes=2, nproc_per_node=2)
    run.write_plan(two, "")
    evidence = read_run(run)
    assert [(one.file.rpartition("/")[2], one.text, one.node) for one in evidence.lines] == [
        ("stderr", "error: b", 0),
        ("stdout", "error: a", 0),
        ("console.log", "the agent's error", 0),
        ("launcher.log", "error on cn9", 1),
        ("launcher.log", "error on cn8", None),
        ("launcher.log", "error on digits-0a1b2c-0", 0),
        ("node-3.log", "error: of its file", 3),
    ]
    assert (evidence.only_node, evidence.missing) == (None, ())


@pytest.mark.parametrize(
    ("script", "said", "told"),
    [
        ("train.py", "ModuleNotFoundError: No module named 'kit'", "; it lies in src"),
        ("train.py", "ModuleNotFoundError: No module named 'one.two'", "; it lies in src"),
        ("train.py", "ModuleNotFoundError: No module named 'torch'", ""),
        ("a/b/go.py", "ImportError: attempted relative import with no known parent package",
         "; a.b.go is a file of a package"),
        ("src/one.py", "ImportError: attempted relative import with no known parent package",
         "; src.one is a file of a package"),
        ("-m", "ImportError: attempted relative import with no known parent package", ""),
        ("-m", "/p/python: No module named a.b.tarin", "; a/b has no tarin"),
        ("-m", "/p/python: No module named a.one", "; a has no one"),
        ("-m", "/p/python: No module named b", ""),
        ("-m", "/p/python: Error while finding module specification for 'src.one.tarin' "
         "(ModuleNotFoundError: __path__ attribute not found on 'src.one')",
         "; src/one.py is no package"),
        ("-m", "/p/python: Error while finding module specification for 'a.b.go' "
         "(ModuleNotFoundError: No module named 'kit')", ""),
    ],
)  # fmt: skip
def test_a_failed_import_is_told_with_what_the_folder_of_the_code_has(
    script, said, told, tmp_path, make_plan
):
    for name in (
        "src/kit/__init__.py",
        "src/one.py",
        "a/__init__.py",
        "a/b/__init__.py",
        "a/b/go.py",
    ):
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).touch()
    run, plan = RunFolder(tmp_path / "digits-0a1b2c"), make_plan(workdir=str(tmp_path / "code"))
    node = replace(plan.nodes[0], command=(script, "train"))
    run.create(replace(plan, nodes=(node,)), "", 9.0)
    rank = run.path / "nodes/0/0/attempt-0/rank-0"
    rank.mkdir(parents=True)
    (rank / "stderr").write_text(traceback(0, said) if said[0] != "/" else said)
    (line,) = read_run(run).lines
    assert line.text == said + told


@pytest.mark.parametrize(
    ("cause", "certainty"), [(Cause.INTERRUPTED, "certain"), (Cause.STOP_REQUESTED, "likely")]
)
def test_a_stop_by_a_person_is_told_as_recorded_and_no_rank_failed_after_it(cause, certainty):
    ends = [worker_end(rank, "ended by its agent", exit_code=-9, cause="terminated", log="")
            for rank in (0, 1)]  # fmt: skip
    failure = decide_report(ends, ())
    told = decide_verdict(
        Evidence(subject="a-1", state="stopped", run_cause=cause, failure=failure, only_node=0)
    )
    assert (told.cause, told.certainty, told.where, told.fell) == (
        "stopped-by-user",
        certainty,
        "",
        (),
    )


def test_what_a_training_refuses_is_told_with_its_own_fix_and_no_line_of_the_code(tmp_path):
    run = ended_run(tmp_path)
    stack = traceback(1, "fabric_train.errors.InputError: lr is 1\n  fix: give lr 2\n")
    stack = stack.replace("[rank1]: ", "")
    error = {"message": "InputError: lr is 1", "extraInfo": {"py_callstack": stack}}
    rank = run.path / "nodes/0/0/attempt-0/rank-1"
    (rank / "error.json").write_text(json.dumps({"message": error}))
    (rank / "stderr").write_text("train: lr is 1\n  fix: give lr 2\n")
    told = verdict_of(run)
    assert (told.cause, told.certainty, told.fix) == ("wrong-argument", "certain", "give lr 2")
    assert told.where == "rank 1 on node 0"


def test_the_last_attempt_of_each_node_is_read(tmp_path):
    for node, life, attempt in ((0, 0, 5), (0, 1, 0), (0, 1, 2), (1, 0, 1)):
        folder = tmp_path / f"nodes/{node}/{life}/attempt-{attempt}/rank-{node}"
        folder.mkdir(parents=True)
        (folder / "stderr").write_text(f"error in {node}/{life}/{'abcdef'[attempt]}\n")
    assert [line.text for line in read_run(RunFolder(tmp_path)).lines] == [
        "error in 1/0/b",
        "error in 0/1/c",
    ]


def test_logs_are_read_within_their_share_and_their_time(tmp_path, monkeypatch):
    reading = LogReading(768)
    (tmp_path / "log").write_bytes(b"x" * (100 << 10))
    reading.read_file(tmp_path / "log", LogLine(file="log"))
    assert reading.missing() == ("36KiB in the middle of log",)
    few = LogReading(0)
    few.read_file(tmp_path / "log", LogLine(file="log"))
    few.read_file(tmp_path, LogLine(file="a folder"))
    assert few.missing() == ()
    assert few.tails == ["x" * (100 << 10)]
    for number in range(4):
        reading.read_file(tmp_path / "log", LogLine(file=f"log{number}"))
    assert reading.missing()[2:] == ("36KiB in the middle of log1", "2 more")
    now = time.monotonic()
    monkeypatch.setattr("launcher.verdict.evidence.time.monotonic", lambda: now + 6.5)
    for _ in range(2):
        few.read_file(tmp_path / "log", LogLine(file="log"))
    assert few.missing() == ("2 of the files (reading ends after 6 s)",)


def test_a_verdict_is_told_in_full_in_a_few_lines_or_in_one(expect_golden):
    lines = tuple(LogLine(file="log", number=number, text=f"line {number}") for number in (0, 7))
    told = Verdict(
        subject="run-1", state="failed", run_cause=Cause.TRAINING_FAILED,
        cause=Cause.NAN_LOSS, certainty="certain", what="x" * 161, fix="a fix", node=1,
        rank=4, host="gpu-b", place="train.py:3", fell=(0, 2, 3), evidence=lines,
        missing=("plan.json", "1 more"),
    )  # fmt: skip
    bare = replace(
        told, what="y" * 160, node=None, host="", fell=(), missing=(), state="", run_cause=None
    )
    shown = [
        render_verdict(told, evidence=True),
        render_verdict(bare),
        render_verdict(replace(bare, rank=None, place="", evidence=lines)),
        render_verdict(replace(told, cause=Cause.NODE_LOST, run_cause=Cause.NODE_LOST, rank=None)),
        render_verdict(replace(told, certainty="", what="it ended well")),
        f"{render_line(told)}\n{render_line(replace(bare, rank=None, place=''))}\n",
        f"{json.dumps(replace(told, evidence=lines[:1]).to_jsonable())}\n",
        f"{bare.to_jsonable()['run_cause']}\n",
    ]
    expect_golden("verdict.txt", "\n".join(shown))


@pytest.mark.parametrize(
    ("state", "missing", "certainty", "what"),
    [
        ("running", (), "", "no failure so far; launcher stacks a tells where its ranks are"),
        (
            "orphaned",
            (),
            "",
            "no failure so far, but its launcher has died; launcher stop a ends it",
        ),
        ("succeeded", (), "", "it ended well"),
        ("", (), "unclear", "no line that was read reports a failure"),
        ("", ("log",), "unclear", "the logs that were read do not say why"),
        ("failed", (), "unclear", "the logs that were read do not say why"),
    ],
)
def test_where_nothing_is_found_the_verdict_says_what_that_means(state, missing, certainty, what):
    survived = LogLine(text="KeyError: 'x'", raised=True, is_own=True, rank=1, node=0)
    lines = (survived,) if state == "succeeded" else ()
    told = decide_verdict(Evidence(subject="a", state=state, missing=missing, lines=lines))
    assert (told.cause, told.certainty, told.what) == (Cause.UNKNOWN, certainty, what)
    assert (told.node, told.rank, told.missing) == (None, None, missing)


def test_of_a_run_that_goes_on_it_is_told_how_long_no_step_was_made():
    looks = [RankLook(rank=r, pid=1, state="S", steps=7, silent_s=30.0 + r) for r in (0, 1)]
    standing = tuple(Standing(line=LogLine(rank=one.rank), frames=(), look=one) for one in looks)
    told = decide_verdict(Evidence(subject="a", state="running", standing=standing))
    assert told.what.startswith("no failure so far; no step of ranks 0-1 for 30 s; launcher stacks")


# -- torchrun -------------------------------------------------------------------------------------


def test_torchruns_own_order_does_not_hide_the_rank_that_failed_by_itself():
    text = traceback(0, LOST_PEER) + traceback(1, "KeyError: 'pixels'")
    text += report(worker(0, 1))
    told = judge(text)
    assert (told.cause, told.rank, told.place) == (Cause.SCRIPT_ERROR, 1, "train.py:12")


def test_two_ranks_that_failed_for_reasons_of_their_own_leave_a_doubt():
    text = (
        traceback(0, "KeyError: 'pixels'") + "[rank1]: OSError: [Errno 28] No space left on device"
    )
    told = judge(text)
    assert told.certainty == "likely"


def test_a_container_that_is_killed_over_and_over_is_told_while_the_run_goes_on(tmp_path):
    run = RunFolder(tmp_path)
    for number in range(3):
        text = "container of run-1-worker-0 ended: exit code 137"
        tell_moment(run, 0, number, at=float(number), text=text, key=str(number))
    told = decide_verdict(read_run(run, state="running"))
    assert (told.cause, told.node) == (Cause.KILLED, 0)
    assert "3 times with exit code 137" in told.what


def test_a_loss_that_the_launchers_log_tells_as_healed_is_no_failure(tmp_path):
    loss = "node 1 is lost: its port refuses; 1 node went on with step 7 after 0.43 s"
    (tmp_path / "launcher.log").write_text(f"launcher: healed: {loss}\n")
    assert read_run(RunFolder(tmp_path)).lines == ()
    (tmp_path / "launcher.log").write_text(f"launcher: {loss}\n")
    assert verdict_of(RunFolder(tmp_path)).cause is Cause.NODE_LOST


def test_a_node_without_room_is_not_why_another_one_failed():
    lines = (LogLine(file="pods", text="0/2 nodes are available: insufficient cpu", node=2),)
    end = WorkerEnd(
        attempt=0,
        rank=0,
        local_rank=0,
        exit_code=1,
        failed_at=1.0,
        cause=Cause.SCRIPT_ERROR,
        exception="ValueError: no such layer",
        log="rank-0",
    )
    evidence = Evidence(subject="run-1", lines=lines, failure=decide_report([end], ()))
    told = decide_verdict(evidence)
    assert (told.cause, told.node) == (Cause.SCRIPT_ERROR, 0)


def test_two_ends_of_a_link_that_blame_each_other_leave_a_doubt():
    said = "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
    one_side = judge(f"[1/4] {said}")
    both = judge(f"[1/4] {said}\n[0/0] {said}")
    assert one_side.cause is both.cause is Cause.INFINIBAND_FAULT
    assert (one_side.certainty, both.certainty) == ("certain", "likely")


def test_slurms_list_of_nodes_places_what_names_a_host():
    text = "SLURM_JOB_NODELIST=cn[130-132]\nsrun: error: cn132: task 2: Out Of Memory\n"
    told = judge(text)
    assert (told.cause, told.node) == (Cause.HOST_OUT_OF_MEMORY, 2)
    assert told.certainty == "likely"  # its node is by the list, and not by the line alone


def test_a_node_that_another_line_tells_is_never_certain():
    named = traceback(9, "KeyError: 'x'")
    for begun, node, certainty in (
        ("", 1, "certain"),  # each of its own lines names it
        ("[1/9] [rank9]: step 1 failed\n", 1, "likely"),
    ):
        text = begun + (named if begun else named.replace("[rank9]: ", "[1/9] [rank9]: "))
        told = judge(text)
        assert (told.node, told.certainty) == (node, certainty)


def test_a_cause_that_others_lead_to_is_never_certain():
    text = traceback(1, "RuntimeError: DataLoader worker (pid 42) is killed by signal: Killed.")
    told = judge(f"node-1 kernel: oom_reaper: reaped process 42\n{text}")
    assert told.cause is Cause.HOST_OUT_OF_MEMORY
    told = judge(text)
    assert (told.cause, told.certainty) == (Cause.DATA_LOADER_WORKER_DIED, "likely")


@pytest.mark.parametrize(
    ("begin", "end"),
    [("2026-11-26T10:00:00.123456789Z ", ""), ("2026-11-26T10:00:00Z stderr F ", "\r"),
     ("\x1b[31m", "\x1b[0m")],
)  # fmt: skip
@pytest.mark.parametrize(
    "fault", ["traceback-of-rank-9-in-the-report", "double-bit-error-on-host-n03"]
)
def test_what_a_viewer_puts_around_each_line_changes_no_verdict(fault, begin, end, tmp_path):
    plain = find_fault(fault).recording
    seen = "".join(f"{begin}{line}{end}\n" for line in plain.read_text().splitlines())
    (tmp_path / plain.name).write_text(seen)
    expected, told = (
        decide_verdict(read_file(plain)),
        decide_verdict(read_file(tmp_path / plain.name)),
    )
    assert (told.what, told.where, told.certainty) == (
        expected.what, expected.where, expected.certainty
    )  # fmt: skip


def test_a_fifo_in_a_folder_of_logs_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "train.log").write_text(traceback(0, "ValueError: bad"))
    assert decide_verdict(read_folder(tmp_path)).cause is Cause.SCRIPT_ERROR


def test_a_rank_that_waited_for_its_debugger_did_not_stand_still(tmp_path, make_plan):
    plan = make_plan(nnodes=1, nproc_per_node=1)
    for debugged in (None, 0):
        run = RunFolder(tmp_path / f"run-{debugged}")
        settings = replace(plan.agent, debug_rank=debugged)
        run.create(replace(plan, agent=settings), "", 1.0, follows=False)
        write_look(run.node_dir(0, 0), "stop-1", 0, why="stop")
        assert read_run(run).stood == (debugged is None)


def test_a_crash_without_a_line_of_its_own_has_its_place(tmp_path):
    folder = ended_run(tmp_path).path / "nodes/0/0/attempt-0/rank-1"
    (folder / "stderr").write_text("")
    stack = '(most recent call first):\n  File "/code/train.py", line 9 in <module>\n'
    (folder / "crash.txt").write_text(f"Segmentation fault\n\nCurrent thread 0x00007f01 {stack}")
    end = json.loads((folder / "exit.json").read_text())
    end |= {"exit_code": -11, "exception": "", "cause": "crashed"}
    (folder / "exit.json").write_text(json.dumps(end))
    found = decide_verdict(read_run(RunFolder(tmp_path / "run-1")))
    assert (found.cause, found.rank, found.place) == (Cause.CRASHED, 1, "train.py:9")
