"""Stacks of pods, by exec into them."""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher.api.profile import take_profile
from launcher.api.stacks import render_stacks, take_stacks
from launcher.api.why import read_named_run
from launcher.contract import protocol
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError
from launcher.follow.look import NOT_STARTED
from launcher.runs.folder import RunFolder
from launcher.targets.agent_archive import read_archive
from launcher.targets.kubernetes.target import KubernetesTarget
from launcher.targets.subprocesses.conversation import Conversation
from launcher.verdict.verdict import decide_verdict
from tests.launcher.cluster_run import ROOT, plan_in, put_pod
from tests.launcher.fake_cluster import FakeCluster
from tests.launcher.looks import answering


def start_pods(server: FakeCluster, folder: Path) -> tuple[RunFolder, dict[int, Path]]:
    """A run of two nodes whose pods run, and each node's folder in its pod."""
    plan = plan_in(folder)
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", 1.0)
    server.put("jobs", KubernetesTarget(folder / "runs").render(plan).objects[-1])
    inside: dict[int, Path] = {}
    for index in (0, 1):
        name, there = f"digits-{index}-a", folder / f"pod-{index}"
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        put_pod(server, name, index, made="00", phase="Running", state=running)
        inside[index] = there / "launcher/run/nodes" / str(index) / "0"
        inside[index].mkdir(parents=True)

        def begin(argv: list[str], there: Path = there) -> subprocess.Popen[bytes]:
            words = [str(there) + word if word.startswith("/launcher") else word for word in argv]
            pipe = subprocess.PIPE
            return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)

        server.programs[name] = begin
    return run, inside


def test_stacks_and_profiles_of_pods_come_by_exec_into_them(server, tmp_path):
    run, inside = start_pods(server, tmp_path)
    with ExitStack() as agents:
        for index, folder in inside.items():
            agents.enter_context(answering(folder, index))
        stacks = take_stacks(run, SystemClock())
        traces = take_profile(run, SystemClock(), steps=2, seconds=5)
    assert render_stacks(stacks).splitlines()[0] == "ranks 0-1: recv <- train.py:7"
    assert sorted(traces.files) == [0, 1]
    assert {path.read_text() for path in traces.files.values()} == {'{"traceEvents": []}'}
    assert not stacks.silent
    assert not traces.missing


def test_a_pod_in_which_no_agent_has_begun_or_no_program_runs_is_not_a_cluster_that_is_away(
    server, tmp_path
):
    run, inside = start_pods(server, tmp_path)
    shutil.rmtree(inside[0].parent)
    pipe = subprocess.PIPE
    server.programs["digits-1-a"] = lambda argv: subprocess.Popen(
        ["sh", "-c", "echo no sh >&2; exit 3"], stdin=pipe, stdout=pipe, stderr=pipe
    )
    told = take_stacks(run, SystemClock())
    assert told.silent == {0: NOT_STARTED, 1: "a program in node of pod digits-1-a failed: no sh"}


def test_a_user_who_may_not_exec_is_told_which_right_is_missing(server, tmp_path):
    run, _ = start_pods(server, tmp_path)
    server.denied.add(("create", "pods/exec"))
    with pytest.raises(InputError, match="may not create and get pods/exec"):
        take_stacks(run, SystemClock())
    told = decide_verdict(read_named_run(run))
    assert told.state == "running"
    assert told.what.startswith("no failure so far")


SCRIPT = """
import os
from launcher.agent.worker.debugger import open_debugger
open_debugger("pdb")
secret = 41
breakpoint()
print("over", secret)
"""


def test_pdb_in_a_pod_is_reached_by_kubectl(server, tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    server.lets_anybody_in = True
    run, inside = start_pods(server, tmp_path)
    (tmp_path / "pod-1/launcher/agent.pyz").write_bytes(read_archive())
    there = {
        protocol.NODE_DIR: str(inside[1]),
        protocol.HEARTBEAT: str(tmp_path / "heartbeat"),
        "RANK": "1",
    }
    worker = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **there, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    door = KubernetesTarget(tmp_path / "runs").door(run.read_plan(), 1)
    folder = "/launcher/run/nodes/1"
    talk = Conversation(door.command((door.python, door.archive, "attach", folder)))
    try:
        with talk.limit(60):
            assert read_until(talk, "(Pdb) ").startswith("> <string>(7)<module>()")
            talk.stdin.write(b"p secret\n")
            talk.stdin.flush()
            assert "41" in read_until(talk, "(Pdb) ")
            talk.stdin.write(b"!secret += 1\nc\n")
            talk.stdin.flush()
        assert worker.communicate(timeout=60)[0] == b"over 42\n"
    finally:
        worker.kill()
        told = talk.end()
    assert told[0] == 0, told


def read_until(talk: Conversation, text: str) -> str:
    seen = ""
    while not seen.endswith(text):
        data = os.read(talk.stdout.fileno(), 4096)
        assert data, f"{text!r} in {seen!r}: {talk.end()}"
        seen += data.decode()
    return seen
