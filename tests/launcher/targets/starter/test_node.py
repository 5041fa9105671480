"""``launcher node``, started by hand and by a real mpirun, as real processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.addresses import LOOPBACK, choose_address, interface_of, own_addresses
from launcher.contract import protocol
from tests.launcher.runner import Runner
from tests.waiting import wait_until

SUM = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), "of node", os.environ["LAUNCHER_NODE_INDEX"], flush=True)
left = [name for name in os.environ if name.startswith(("OMPI_", "PMIX_"))]
print("left", left, "by", os.environ.get("GLOO_SOCKET_IFNAME"), flush=True)
dist.destroy_process_group()
"""
ALONE = """
import os, sys
print("alone", flush=True)
sys.exit(int(os.environ.get("CODE", "0")))
"""
JOB = "name: tiny\nnproc_per_node: 1\nstop_grace_s: 5\n"
WAITING = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("up", flush=True)
pathlib.Path(os.environ["RUN_DIR"], "up-" + os.environ["LAUNCHER_NODE_INDEX"]).touch()
time.sleep(300)
"""
LAUNCHER = """\
#!/bin/sh
exec {python} -m launcher "$@"
"""
REMOTE = """\
#!/bin/sh
# HOST COMMAND...: as ssh would, on this machine; each host has a folder for its sessions.
mkdir -p "$PWD/tmp-$1" && export TMPDIR="$PWD/tmp-$1"
shift
exec /bin/sh -c "$*"
"""


class Starting:
    """Starts ``launcher node`` on nodes that are all this machine."""

    def __init__(self, folder: Path) -> None:
        self.launcher = Runner(folder)
        self.launcher.write(SUM, JOB)
        self.started: list[subprocess.Popen[str]] = []
        for name, text in (("launcher", LAUNCHER), ("remote", REMOTE)):
            path = folder / name
            path.write_text(text.format(python=shlex.quote(self.launcher.argv()[0])))
            path.chmod(0o755)
        others = ("SLURM_", "OMPI_", "PMI", "PBS_")
        self.env = {k: v for k, v in self.launcher.env.items() if not k.startswith(others)}

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv,
            cwd=self.launcher.folder,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def node(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return self.start("./launcher", "node", *words, **env)

    def mpirun(self, nodes: int, *words: str, **env: str) -> subprocess.Popen[str]:
        hosts = ",".join(f"n{number}" for number in range(nodes))
        argv = ("mpirun", "--allow-run-as-root", "--host", hosts, "-N", "1")
        remote = str(self.launcher.folder / "remote")
        return self.start(*argv, "--mca", "plm_rsh_agent", remote, "./launcher", *words, **env)

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=60)
        wait_until(lambda: self.launcher.processes() == [])


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    starting = Starting(tmp_path)
    yield starting
    starting.end()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=150)
    return process.returncode, out, err


@pytest.mark.slow
def test_a_node_runs_the_job_again_and_again_and_the_folder_tells_of_each(
    starting: Starting,
) -> None:
    starting.launcher.write(ALONE, JOB)
    words = ("job.yaml", "--nnodes", "1", "--run-id", "one")
    code, out, err = finish(starting.node(*words, LAUNCHER_NODE_INDEX="0"))
    assert (code, "[0/0] alone\n" in out) == (0, True), err
    assert "launcher: run one: nnodes 1 x nproc_per_node 1 on cpu; folder" in err
    assert "one: succeeded on starter" in starting.launcher("status", "one").stdout
    assert "alone" in starting.launcher("logs", "one").stdout
    # The same run goes on, as one whose job was requeued; its exit code is the agent's.
    code, _, err = finish(starting.node(*words, LAUNCHER_NODE_INDEX="0", CODE="7"))
    assert (code, "training-failed" in err) == (1, True), err
    run = starting.launcher.folder / "runs/one"
    assert sorted(p.name for p in (run / protocol.NODES_DIR / "0").iterdir()) == ["0", "1"]
    assert (run / "outcome-0.json").exists()
    # Another job does not take it over.
    code, _, err = finish(starting.node(*words, "--", "--lr", "3", LAUNCHER_NODE_INDEX="0"))
    assert code == 2
    assert "one was started before with another job or other options" in err
    assert "--run-id one-2" in err


@pytest.mark.parametrize(
    ("signum", "expected", "reason"),
    [
        (signal.SIGTERM, 143, "preempted"),
        pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.slow),
    ],
)
def test_a_signal_of_the_starter_ends_the_node(
    starting: Starting, signum: int, expected: int, reason: str
) -> None:
    starting.launcher.write(WAITING, JOB)
    env = {"LAUNCHER_NODE_INDEX": "0"}
    node = starting.node("job.yaml", "--nnodes", "1", "--run-id", "x", **env)
    wait_until((starting.launcher.folder / "runs/x/up-0").exists)
    node.send_signal(signum)
    code, _, err = finish(node)
    assert (code, reason in err) == (expected, True), err


@pytest.mark.parametrize(
    ("words", "index", "said", "fix"),
    [
        ("job.yaml", "", "cannot find out which node this is", "srun --ntasks-per-node=1"),
        ("job.yaml", "0", "your script does not tell how many nodes", "--nnodes N"),
        ("job.yaml --nnodes 2", "0", "gives no job id", "--run-id tiny-$(date +%s)"),
        ("job.yaml --nnodes 2 --run-id a", "2", "2, but this is node 2", "a larger nnodes"),
        ("job.yaml --nnodes 2 --run-id a/b", "0", "letters, digits, points", "--run-id a-b"),
        ("job.yaml --nnodes 2 --run-id a --set engine=torchrun", "0", "torchrun must", "remove"),
        (
            "job.yaml --nnodes 2 --run-id a --set rdzv.backend=static",
            "0",
            "addresses are not known before",
            "leave it out",
        ),
        ("gone.py --nnodes 2 --run-id a", "0", "no such file", "check the path"),
    ],
)
def test_what_is_wrong_is_told_at_once_with_the_fix(
    starting: Starting, words: str, index: str, said: str, fix: str
) -> None:
    env = {"LAUNCHER_NODE_INDEX": index} if index else {}
    code, _, err = finish(starting.node(*words.split(), **env))
    assert code == 2, err
    assert said in err
    assert fix in err


@pytest.mark.mpi
def test_mpirun_that_starts_several_on_a_node_is_an_error_of_each(starting: Starting) -> None:
    argv = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")
    code, _, err = finish(starting.start(*argv, "./launcher", "node", "job.yaml"))
    assert code == 2
    assert "mpirun started 2 processes on this node" in err
    assert "fix: start one on each node: mpirun -N 1" in err


@pytest.mark.mpi
def test_nodes_that_mpirun_starts_form_a_group_and_end_with_one_code(starting: Starting) -> None:
    process = starting.mpirun(2, "node", "job.yaml")
    code, out, err = finish(process)
    assert code == 0, err
    assert {"[0/0] sum 2 of node 0", "[1/1] sum 2 of node 1"} <= set(out.splitlines())
    # Else gloo takes the interface of the host's name, which may be the loopback.
    interface = interface_of(choose_address([]))
    assert out.count(f"left [] by {interface or None}\n") == 2
    if len(os.sched_getaffinity(0)) > 1:
        assert "mpirun bound this node to 1 of its cores; the workers get all" in err
    (run_id,) = starting.launcher.run_ids()
    assert f"{run_id}: succeeded on starter" in starting.launcher("status").stdout
    listed = starting.launcher("ps", "--all").stdout
    assert "starter" in listed


@pytest.mark.slow
@pytest.mark.mpi
def test_a_stop_from_another_terminal_reaches_nodes_that_mpirun_started(
    starting: Starting,
) -> None:
    starting.launcher.write(WAITING, JOB)
    process = starting.mpirun(2, "node", "job.yaml")
    latest = starting.launcher.folder / "runs/latest"
    wait_until(lambda: len(list(latest.glob("up-*"))) == 2)
    (run_id,) = starting.launcher.run_ids()
    status = starting.launcher("status")
    assert f"{run_id}: running on starter" in status.stdout
    assert "node 1.0: running" in status.stdout
    assert "starter" in starting.launcher("ps").stdout
    stopped = starting.launcher("stop")
    assert (stopped.returncode, "stopped, stop-requested" in stopped.stderr) == (0, True)
    assert finish(process)[0] == 143
    assert starting.launcher("stop").returncode == 0
    assert "no runs go on" in starting.launcher("ps").stdout


@pytest.mark.mpi
def test_what_is_wrong_for_node_0_alone_ends_the_others_too(starting: Starting) -> None:
    (starting.launcher.folder / "runs").write_text("in the way")
    code, _, err = finish(starting.mpirun(2, "node", "job.yaml"))
    assert code == 2, err
    assert "runs" in err
    (starting.launcher.folder / "runs").unlink()


def test_the_interface_of_an_address_is_known_but_for_the_loopback() -> None:
    for address in own_addresses():
        assert interface_of(address)
    assert interface_of(LOOPBACK) == ""
    assert interface_of("203.0.113.7") == ""
    assert interface_of("a-name") == ""
