"""Every command that is printed to be typed is typed, as it was printed, in the same folder.

The options are those that a later command cannot guess: another kubeconfig, context and namespace,
another folder for runs, another kind than the job file's.
"""

import re
import shlex
import subprocess
import threading
from typing import Any

import pytest

from launcher.contract import protocol
from tests.launcher.cluster_run import agents_outcome
from tests.launcher.commands.claims.test_printed_commands import (
    OF_JOB,
    PROGRAM,
    RUNS,
    kubectl,
    terminal,
)
from tests.launcher.fake_cluster import FakeCluster, ended, pod

INDEX = "batch.kubernetes.io/job-completion-index"
COMMAND = re.compile(rf"{PROGRAM} (?:logs|status|stop|scale|report|ps|run|render|doctor)\b.*")
PROSE = re.compile(r" (?:to|lists|shows|removes|tells|says)\b|[,;)]| {2}|$")
"""Where the words begin that stand behind a command in a sentence."""


def commands_in(text: str) -> list[str]:
    """What a person would mark and paste."""
    found: list[str] = []
    for line in text.splitlines():
        while match := COMMAND.search(line):
            rest = match[0]
            end = PROSE.search(rest)
            assert end is not None, "every text has an end"
            found.append(rest[: end.start()])
            line = rest[end.start() :]
    return list(dict.fromkeys(found))


def run_id_of(server: FakeCluster) -> str:
    return str(server.objects["jobs", "digits"]["metadata"]["labels"][protocol.LABEL_RUN_ID])


def put_pod(server: FakeCluster, **fields: Any) -> None:
    labels = {protocol.LABEL_RUN_ID: run_id_of(server), INDEX: "0"}
    server.put("pods", pod("digits-0-a", labels, **fields))


def collect_garbage(server: FakeCluster) -> threading.Thread:
    """As the controllers do: the pod goes after its job."""

    def collect() -> None:
        server.until(lambda: ("jobs", "digits") not in server.objects)
        if ("pods", "digits-0-a") in server.objects:
            server.log("digits-0-a", ended=True)
            server.remove("pods", "digits-0-a")

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    return thread


def fail(server: FakeCluster, process: subprocess.Popen[str]) -> str:
    """The run's pod and job fail; what its launcher said in all."""
    told = agents_outcome(at=2.0, message="ValueError: no data", cause="training-failed")
    put_pod(server)
    server.log("digits-0-a", ("2026-01-01T00:00:01Z", "[0/0] no data at all"), ended=True)
    put_pod(server, phase="Failed", state=ended(1, message=told))
    job = server.objects["jobs", "digits"]
    server.put("jobs", {**job, "status": {"conditions": [{"type": "Failed", "status": "True"}]}})
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 1, text
    return text


def test_what_a_failed_run_prints_is_typed(terminal, server):
    text = fail(server, terminal.run_job())
    run_id = run_id_of(server)
    (log,) = re.findall(r"^ +log: (.*)$", text, re.MULTILINE)
    assert "no data at all" in (terminal.folder / log).read_text()
    commands = commands_in(text)
    kinds = [command.split()[3] for command in commands]
    assert sorted(kinds) == ["logs", "render", "report", "stop"]
    by_kind = dict(zip(kinds, commands, strict=True))
    assert "[0/0] no data at all" in terminal.paste(by_kind["logs"])
    assert f"{run_id}: FAILED" in terminal.paste(by_kind["report"])
    rendered = terminal.paste(by_kind["render"])
    assert all(part in rendered for part in ("kind: Job", "other:2", "--epochs=1", "good day"))
    again = terminal.type("run", "job file.yaml", "--on", "kubernetes", "--runs", RUNS,
                          *terminal.of_place, *OF_JOB)  # fmt: skip
    assert again[0] == 2
    attach, replace = commands_in(again[1])
    assert (attach.split()[3], replace.split()[3]) == ("logs", "stop")
    # Followed to its end, a failed run's logs end with its code.
    assert "[0/0] no data at all" in terminal.paste(attach, code=1)
    gone = collect_garbage(server)
    terminal.paste(by_kind["stop"])
    gone.join(60)
    assert ("jobs", "digits") not in server.objects


def test_what_detached_and_orphaned_runs_print_is_typed(terminal, server):
    words = ("run", "job file.yaml", "--on", "kubernetes", "--runs", RUNS, "--detach")
    code, text = terminal.type(*words, *terminal.of_place, *OF_JOB)
    assert code == 0, text
    run_id = run_id_of(server)
    put_pod(server)
    server.log("digits-0-a", ("2026-01-01T00:00:01Z", "[0/0] up"), ended=True)
    (follow,) = commands_in(text)
    attached = terminal.start(*shlex.split(follow.removeprefix(f"{PROGRAM} ")))
    where = ("--runs", RUNS, "--kubeconfig", "their config")
    code, text = terminal.type("scale", run_id, "1", *where)
    assert code == 0, text
    for command in commands_in(text):
        terminal.paste(command)
    code, text = terminal.type("scale", run_id, "9", *where)
    assert code == 2
    assert "--resume" not in text
    assert [command.split()[3] for command in commands_in(text)] == ["stop"]
    gone = collect_garbage(server)
    code, text = terminal.type("stop", run_id, *where)
    assert code == 0, text
    gone.join(60)
    assert "[0/0] up" in attached.communicate(timeout=60)[0]
    # Nothing of the run is left on the cluster, whose runs a kubeconfig would ask for.
    here = ("--runs", RUNS)
    for words in (("ps", *here), ("status", "letters", *here), ("scale", run_id, "1", *here)):
        _, text = terminal.type(*words)
        listed = commands_in(text)
        assert listed, text
        for command in listed:
            assert run_id in terminal.paste(command) or "--all" not in command


def test_what_is_printed_of_a_run_without_a_folder_is_typed(terminal, server):
    text = fail(server, terminal.run_job())
    (folder,) = [path for path in (terminal.folder / RUNS).iterdir() if not path.is_symlink()]
    for path in (terminal.folder / RUNS).iterdir():
        path.rename(terminal.folder / path.name)
    for verb in ("status", "report"):
        code, text = terminal.type(verb, "digits", *terminal.of_place)
        assert code == 0, text
        (shows,) = commands_in(text)
        assert (
            f"logs --kubeconfig 'their config' --context other --namespace mine {folder.name}"
            in shows
        )
        assert "no data at all" in terminal.paste(shows)


def test_what_a_run_of_this_machine_prints_is_typed(terminal):
    (terminal.folder / "train me.py").write_text(
        "import json, os, pathlib, sys\n"
        "print('hello', os.environ['GREETING'], sys.argv[1:])\n"
        "pathlib.Path(os.environ['RUN_DIR'], 'metrics.json').write_text(json.dumps({'steps': 9}))\n"
    )
    (terminal.folder / "job file.yaml").write_text("name: own\ncommand: [train me.py]\nnnodes: 2\n")
    code, text = terminal.type(
        *("run", "job file.yaml", "--on", "local", "--runs", RUNS, "--nnodes", "1"),
        *("--set", "env.GREETING=good day", "--", "--epochs=1", "a b"),
    )
    assert code == 0, text
    first = "hello good day ['--epochs=1', 'a b']"
    assert first in text
    # Beside it, runs of others on this machine whose launchers have died may be named.
    told = [line for line in text.splitlines() if "left behind" not in line]
    logs, train_on, render = commands_in("\n".join(told))
    assert first in terminal.paste(logs)
    again = terminal.paste(train_on)
    assert first in again
    assert "nnodes 1 x" in again
    assert "good day" in terminal.paste(render)


@pytest.mark.kubectl
def test_the_command_that_resumes_a_kept_run_resumes_it(terminal, server, kubectl):
    words = ("run", "job file.yaml", "--on", "kubernetes", "--detach", "--runs", RUNS)
    code, text = terminal.type(*words, *terminal.of_place, *OF_JOB)
    assert code == 0, text
    where = ("--runs", RUNS, "--kubeconfig", "their config")
    code, text = terminal.type("stop", "--keep", *where)
    assert code == 0, text
    assert server.objects["jobs", "digits"]["spec"]["suspend"] is True
    done = kubectl(text.partition("resume it: ")[2].splitlines()[0])
    assert done.communicate(timeout=60)[1] == ""
    assert done.returncode == 0
    assert server.objects["jobs", "digits"]["spec"]["suspend"] is False
