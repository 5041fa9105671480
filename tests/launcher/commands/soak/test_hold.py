"""``hold``, ``run --in`` and ``stop`` on local processes; programs in nodes of a run."""

import os
import signal
import sys

import pytest

from tests.launcher.commands.claims.test_hold import JOB, ON, dev, shared
from tests.programs import run_program
from tests.waiting import wait_until


def test_a_run_in_a_hold_restarts_its_workers(dev):
    script = "import os\nif os.environ['LAUNCHER_NODE_ATTEMPT'] == '0': os._exit(3)\nprint('on')\n"
    dev.write(script, JOB + "max_restarts: 2\n")
    for words in ((), ("--fresh",)):
        done = dev.well("run", "job.yaml", "--in", "dev", *words)
        assert done.stdout.count("on") == 2


SAVES = """
import os, pathlib, signal, sys, time
run = pathlib.Path(os.environ["RUN_DIR"])
def save(*_):
    (run / "saved").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
(run / "up").touch()
while True:
    time.sleep(0.1)
"""


def test_a_hold_tells_of_its_limit_and_lets_a_run_save_when_it_is_ended(launcher):
    done = launcher.well(
        "hold", "--name", "dev", "--nproc-per-node", "1", "--idle-limit", "301", *ON
    )
    told = "nothing runs here; the hold ends in 5 min"
    wait_until(lambda: told in launcher("logs", "-v", "dev").stderr)
    launcher.write(SAVES, JOB)
    process = launcher.start("run", "job.yaml", "--in", "dev")
    run = launcher.folder / "runs/latest"
    wait_until(lambda: (run / "up").exists())
    assert launcher("stop", done.stdout.strip()).returncode == 0
    _, told = process.communicate(timeout=120)
    said = told.decode()
    assert process.returncode == 137, said
    assert (run / "saved").exists(), said
    assert ": FAILED on local (node-lost; the hold dev has ended (stop-requested)" in said
    assert "starting all nodes again" not in said
    assert "hold --name dev --nnodes 1; " in launcher("why").stdout


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["run", "job.yaml", "--in", "none"], "no hold 'none' in "),
        (["run", "job.yaml", "--fresh"], "--fresh goes with --in NAME"),
        (["render", "job.yaml", "--in", "dev"], "--in dev: held nodes fork a run, and start"),
        (["run", "job.yaml", "--in", "dev", "--on", "docker"], "--in dev: that hold is on local"),
        (["run", "job.yaml", "--in", "dev", "--nnodes", "3"], "the hold dev has 2"),
        (["hold", "--name", "dev", *ON], "--name dev: that hold is there already"),
        (["exec", "dev"], "exec: which program?"),
        (["exec", "dev", "--node", "2", "--", "true"], "node 2: "),
        (["stacks", "dev"], " is a hold and has no workers: held by "),
        (["profile", "dev"], " is a hold and has no workers: held by "),
    ],
)
def test_wrong_input_is_refused(dev, words, what):
    told = dev.fails(2, *words)
    assert what in told, told


def test_packages_that_change_are_imported_anew_and_this_is_told(launcher):
    packages = launcher.folder / "site-packages"
    packages.mkdir()
    launcher.env["PYTHONPATH"] += f":{packages}"
    launcher.write("import newer\nprint('well')\n", JOB)
    launcher.well("hold", "--name", "dev", "--nproc-per-node", "1", *ON)
    (packages / "newer.py").write_text("")
    launcher.well("run", "job.yaml", "--in", "dev")
    assert "packages have changed: torch is imported anew" in launcher("logs", "-v", "dev").stderr
    assert launcher("stop", "dev").returncode == 0


def test_nodes_are_held_from_python(launcher):
    launcher.write("import torch\nprint('sum', 40 + 2)\n", JOB)
    script = """
from launcher import InputError, Job, hold
with hold(name="py", on="local", nnodes=2, nproc_per_node=1) as nodes:
    for _ in range(2):
        done = nodes.run(Job(command="train.py"))
        print(done.wait().cause, *sorted(done.logs()))
"""
    (launcher.folder / "start.py").write_text(script)
    done = run_program(
        [sys.executable, "start.py"], cwd=launcher.folder, env=launcher.env, timeout=150
    )
    assert done.stdout.splitlines() == ["completed [0/0] sum 42 [1/1] sum 42"] * 2, done.stderr
    wait_until(lambda: not launcher.processes())
