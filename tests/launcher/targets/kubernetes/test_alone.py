"""Runs on a cluster that no launcher follows any more: looked at, followed, told the end of."""

import contextlib
import io
import json
import shlex
import threading

import pytest

from launcher.api.listing import read_state, show_logs
from launcher.commands.cli import run_command
from launcher.contract.hold import READY_SAYS, Ready
from launcher.contract.records import dump_record
from launcher.runs.folder import RunFolder
from launcher.targets.held.hold import Hold
from launcher.targets.kubernetes.api.cluster import Cluster, ObjectPlace
from launcher.targets.kubernetes.pods.logs import ConsoleWriter
from launcher.targets.kubernetes.render.kinds import API_OF_KIND
from tests.launcher.cluster_run import put_pod
from tests.launcher.fake_cluster import FakeCluster, Fault, ended
from tests.launcher.targets.kubernetes.conftest import submit_run


def say(
    server: FakeCluster, name: str, *lines: str, at: int, last: bool = False, **where: int
) -> None:
    stamped = [(f"2026-01-01T00:00:{at:02d}.5Z", line) for line in lines]
    server.log(name, *stamped, ended=last, **where)


def end(server: FakeCluster, kind: str = "Complete") -> None:
    job = server.objects["jobs", "digits"]
    job["status"] = {"conditions": [{"type": kind, "status": "True"}]}
    server.put("jobs", job)


class Logs:
    """``launcher logs -f`` in a thread."""

    def __init__(self, run: RunFolder) -> None:
        self._stream = io.BytesIO()
        self._thread = threading.Thread(target=self._show, args=(run,), daemon=True)
        self._thread.start()

    def _show(self, run: RunFolder) -> None:
        show_logs(run, self._stream, self._stream, follow=True, rank=None, agents=False)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().decode().splitlines()

    def end(self) -> list[str]:
        self._thread.join(60)
        assert not self._thread.is_alive(), self.lines
        return self.lines


def test_logs_are_followed_from_the_cluster_through_restarts_and_new_pods_to_the_end(server, run):
    put_pod(server, "d-0", 0)
    put_pod(server, "d-1", 1)
    say(server, "d-0", "[0/0] a1", at=1)
    say(server, "d-1", "[1/1] b1", at=1)
    logs = Logs(run)
    server.until(lambda: {"[0/0] a1", "[1/1] b1"} == {*logs.lines})
    # The container of one pod ends and starts again, its connection cut in the middle of a line.
    server.faults.append(Fault("GET", "/log", 0, after=40))
    say(server, "d-0", "[0/0] a2", "[0/0] a2", at=2, last=True)
    put_pod(server, "d-0", 0, restarts=1, last=ended(137))
    say(server, "d-0", "[0/0] a3", at=3, restart=1)
    server.until(lambda: "[0/0] a3" in logs.lines)
    # The other pod is drained, and made anew.
    say(server, "d-1", "[1/1] b2", at=3, last=True)
    server.until(lambda: "[1/1] b2" in logs.lines)
    server.remove("pods", "d-1")
    put_pod(server, "d-1-again", 1)
    say(server, "d-1-again", "[1/1] b3", at=4, last=True)
    say(server, "d-0", "[0/0] a4", at=5, restart=1, last=True)
    put_pod(server, "d-1-again", 1, phase="Succeeded", state=ended(0))
    put_pod(server, "d-0", 0, phase="Succeeded", state=ended(0), restarts=1, last=ended(137))
    end(server)
    server.until(lambda: ("jobs", "digits") not in server.objects)
    for name in ("d-0", "d-1-again"):
        server.remove("pods", name)
    told = logs.end()
    assert [line for line in told if line.startswith("[0")] == [
        *("[0/0] a1", "[0/0] a2", "[0/0] a2", "[0/0] a3", "[0/0] a4")
    ]
    assert [line for line in told if line.startswith("[1")] == ["[1/1] b1", "[1/1] b2", "[1/1] b3"]
    outcome = run.read_outcome()
    assert (outcome.cause, outcome.exit_code) == ("completed", 0)


def test_two_terminals_that_follow_one_run_both_show_each_line_once(server, run):
    put_pod(server, "d-0", 0)
    say(server, "d-0", "[0/0] one", at=1)
    first, second = Logs(run), Logs(run)
    server.until(lambda: first.lines == second.lines == ["[0/0] one"])
    say(server, "d-0", "[0/0] two", at=2, last=True)
    put_pod(server, "d-0", 0, phase="Failed", state=ended(1))
    end(server, "Failed")
    assert first.end() == second.end() == ["[0/0] one", "[0/0] two"]
    assert len(server.asked("GET", "/pods/d-0/log")) <= 2, "one of them reads the cluster"


def test_logs_are_read_again_without_a_line_twice_and_keep_what_the_cluster_forgot(server, run):
    def logs() -> list[str]:
        stream = io.BytesIO()
        show_logs(run, stream, stream, follow=False, rank=None, agents=False)
        return stream.getvalue().decode().splitlines()

    put_pod(server, "d-0", 0)
    say(server, "d-0", "[0/0] one", "[0/0] two", at=1)
    assert logs() == logs() == ["[0/0] one", "[0/0] two"]
    # The kubelet rotates its files: of a long log it has the end alone.
    del server.logs["d-0", 0].lines[0]
    say(server, "d-0", "[0/0] three", at=3)
    assert logs() == ["[0/0] one", "[0/0] two", "[0/0] three"]
    server.remove("pods", "d-0")
    assert logs() == ["[0/0] one", "[0/0] two", "[0/0] three"]


def test_a_pod_that_is_held_says_by_its_log_that_it_takes_runs(server, run):
    put_pod(server, "d-0", 0)
    say(server, "d-0", "[agent] restart (lost-peer)", at=1)
    for ready in (None, Ready(address="10.0.0.7", cpu_count=4)):
        if ready:
            say(server, "d-0", f"[agent] {READY_SAYS}{dump_record(ready)}", at=2)
        show_logs(run, io.BytesIO(), io.BytesIO(), follow=False, rank=None, agents=False)
        assert Hold(run).read_ready(0) == ready


@pytest.mark.parametrize(
    ("held", "log", "whole"),
    [
        ("", "ab", "ab"),
        ("a", "ab", "ab"),
        ("ab", "ab", "ab"),
        ("abc", "bcd", "abcd"),
        ("ab", "cd", "abcd"),
        ("aab", "aabb", "aabb"),
    ],
)
def test_a_log_is_appended_to_the_part_of_it_that_is_there(held, log, whole, tmp_path):
    file = tmp_path / "console"
    file.write_text("".join(f"{letter}\n" for letter in held))
    write = ConsoleWriter(file)
    for letter in log:
        write(f"{letter}\n".encode())
    assert file.read_text().split() == [*whole]


def test_lines_whose_file_cannot_be_opened_come_with_the_next_one(tmp_path):
    write = ConsoleWriter(tmp_path / "later" / "console")
    write(b"a\n")
    (tmp_path / "later").mkdir()
    write(b"b\n")
    assert (tmp_path / "later" / "console").read_bytes() == b"a\nb\n"


# -- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pods", [0, 1])
def test_a_job_whose_pods_are_away_goes_on(pods, server, run):
    """Queued, or between two pods of one node: nothing that a look may end."""
    for index in range(pods):
        put_pod(server, f"d-{index}", index, phase="Failed", state=ended(137))
    assert read_state(run, run.read_plan()) == ("running", None)
    assert ("jobs", "digits") in server.objects
    assert run.read_outcome() is None


@pytest.mark.parametrize(
    ("condition", "reason", "kept"),
    [("Complete", "completed", False), ("Failed", "training-failed", True)],
)
def test_a_job_that_ended_unseen_gets_its_outcome_at_the_next_look(
    condition, reason, kept, server, run
):
    code = 0 if condition == "Complete" else 1
    put_pod(server, "d-0", 0, phase="Succeeded" if code == 0 else "Failed", state=ended(code))
    say(server, "d-0", "[0/0] last words", at=1, last=True)
    end(server, condition)
    gone = threading.Thread(target=_collect_garbage, args=(server,), daemon=True)
    gone.start()
    _, outcome = read_state(run, run.read_plan())
    assert outcome.cause == reason
    assert (("jobs", "digits") in server.objects) is kept
    assert [path.read_text() for _, path in run.consoles()] == ["[0/0] last words\n"]
    again = read_state(run, run.read_plan())[1]
    assert again.finished_at == outcome.finished_at


def _collect_garbage(server: FakeCluster) -> None:
    """As the controllers do: pods go after their job."""
    with contextlib.suppress(AssertionError):
        server.until(lambda: ("jobs", "digits") not in server.objects)
        server.remove("pods", "d-0")


def test_status_tells_a_pods_trouble_in_the_clusters_own_words_with_the_fix(server, run, capsys):
    put_pod(server, "d-0", 0, phase="Failed", state=ended(137, "OOMKilled"))
    assert run_command(["status", run.run_id, "--runs", str(run.path.parent)]) == 0
    told = "exited, exit code 137, SIGKILL (9); d-0: OOMKilled; raise resources.memory"
    assert f"node 0: {told}" in capsys.readouterr().out


def test_many_pods_are_followed_at_once_and_nothing_but_their_lines_is_said(server, run, caplog):
    names = [f"d-{index}" for index in range(48)]
    for index, name in enumerate(names):
        put_pod(server, name, index)
        say(server, name, f"[{index}/{index}] hello", at=1)
    logs = Logs(run)
    server.until(lambda: len(logs.lines) == len(names))
    for index, name in enumerate(names):
        say(server, name, at=2, last=True)
        put_pod(server, name, index, phase="Failed", state=ended(1))
    end(server, "Failed")
    assert sorted(logs.end()) == sorted(f"[{i}/{i}] hello" for i in range(48))
    # With no handler of its own, Python prints warnings of the client to the terminal.
    assert [record.getMessage() for record in caplog.records] == []


# -- changing -------------------------------------------------------------------------------------


def command(run: RunFolder, *argv: str) -> int:
    return run_command([argv[0], run.run_id, *argv[1:], "--runs", str(run.path.parent)])


def test_a_job_is_scaled_without_a_launcher_and_status_expects_no_more_nodes(server, run, capsys):
    put_pod(server, "d-0", 0)
    put_pod(server, "d-1", 1)
    assert command(run, "scale", "1") == 0
    spec = server.objects["jobs", "digits"]["spec"]
    assert (spec["parallelism"], spec["completions"]) == (1, 1)
    server.remove("pods", "d-1")
    assert command(run, "status") == 0
    said = capsys.readouterr().out
    assert "node 0: running" in said
    assert "node 1" not in said


def scale_by_kubectl(server: FakeCluster, nodes: int) -> None:
    job = server.objects["jobs", "digits"]
    job["spec"] |= {"parallelism": nodes, "completions": nodes}
    server.put("jobs", job)


def test_status_expects_the_nodes_that_the_object_asks_for_whoever_has_scaled_it(
    server, run, capsys
):
    put_pod(server, "d-0", 0)
    put_pod(server, "d-1", 1)
    scale_by_kubectl(server, 1)
    server.remove("pods", "d-1")
    server.event("Job", "digits", "PyTorchJobRestarting", "Worker replica(s) failed")
    assert command(run, "status") == 0
    said = capsys.readouterr().out
    assert "node 1" not in said
    assert "failed" not in said
    assert command(run, "scale", "1") == 0
    scale_by_kubectl(server, 2)
    put_pod(server, "d-1b", 1)
    assert command(run, "status") == 0
    assert "node 1: running" in capsys.readouterr().out


def test_a_stop_without_a_launcher_deletes_the_job_and_all_that_was_made_for_it(server, run):
    assert command(run, "stop") == 0
    assert server.objects == {}
    outcome = run.read_outcome()
    assert outcome.cause == "stop-requested"
    assert command(run, "stop") == 0


@pytest.mark.parametrize("kind", ["job", "pytorchjob"])
def test_a_run_that_was_stopped_and_kept_goes_on_once_it_is_resumed(kind, server, tmp_path, capsys):
    root, run = str(tmp_path / "runs"), submit_run(tmp_path, kind=kind)
    plan, before = run.read_plan(), {*server.objects}
    assert run_command(["stop", "--keep", "--runs", root]) == 0
    assert {*server.objects} == before, "what was made for the job stays"
    said = capsys.readouterr().err
    resuming = said.partition("resume it: ")[2]
    assert resuming.startswith(f"kubectl patch {kind} digits -n team --context fake --type merge")
    assert read_state(run, plan)[0] == "suspended"
    assert run_command(["ps", "--runs", root]) == 0
    assert " suspended " in capsys.readouterr().out, "as the cluster's own list has it"
    assert run_command(["logs", "--runs", root]) == 0
    # As the command that was printed does it.
    patch = json.loads(shlex.split(resuming)[-1])
    api_version, name = API_OF_KIND[kind]
    place = ObjectPlace(api_version=api_version, kind=name, name="digits")
    Cluster().merge(place, patch)
    put_pod(server, "d-0", 0)
    say(server, "d-0", "[0/0] again", at=3, last=True)
    assert read_state(run, plan)[0] == "running"
    assert run.read_outcome() is None
    capsys.readouterr()
    assert run_command(["logs", "--runs", root]) == 0
    assert capsys.readouterr().out == "[0/0] again\n"
    server.remove("pods", "d-0")
    assert run_command(["stop", "--runs", root]) == 0
    assert (f"{kind}s", "digits") not in server.objects
