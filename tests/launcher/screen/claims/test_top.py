"""``launcher top``: what it reads of a run, and what it shows in a terminal."""

import os
import signal
from pathlib import Path

import pytest

from launcher.targets import process_table
from tests.launcher.screen.test_top import STEPS, Tmux, runner
from tests.waiting import wait_until


def steps_of_attempt(nodes: Path, attempt: int) -> list[str]:
    return [path.read_text() for path in nodes.glob(f"*/*/attempt-{attempt}/rank-*/stdout")]


@pytest.mark.tmux
def test_a_terminal_shows_a_restart_the_stacks_and_the_log_and_ends_the_run(runner):
    runner.write(STEPS, "name: tiny\nnproc_per_node: 1\nnnodes: 2\nmax_restarts: 3\n")
    runner.well("run", "job.yaml", "--on", "local", "--detach")
    tmux = Tmux(runner.folder, runner.argv("top"), {**runner.env, "TERM": "xterm-256color"})
    try:
        tmux.wait_for("first step")
        tmux.wait_for("one more step")
        run_id = runner.run_ids()[0]
        workers = process_table.find(LAUNCHER_RUN_ID=run_id, RANK="1")
        os.kill(workers[-1], signal.SIGKILL)
        tmux.wait_for("restarts: ")
        # Both are in the script again: while torch is imported their stacks are long.
        again = runner.folder / "runs" / run_id / "nodes"
        wait_until(lambda: len(steps_of_attempt(again, 1)) == 2 and all(steps_of_attempt(again, 1)))
        tmux("send-keys", "s")
        tmux.wait_for("train.py")
        tmux.close_page()
        tmux("send-keys", "l")
        tmux.wait_for("== stderr")
        tmux.close_page()
        tmux("send-keys", "x")
        tmux.wait_for("x again ends")
        tmux("send-keys", "x")
        tmux.wait_for(f"{run_id}: stopped, stop-requested")
        tmux.close_page()
        tmux.wait_for("STOPPED on local")
        tmux("send-keys", "q")
        wait_until(lambda: not tmux("list-sessions"))
    finally:
        tmux("kill-server")
