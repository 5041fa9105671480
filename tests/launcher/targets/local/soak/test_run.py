"""Whole runs on local processes: real torchrun, real workers, real signals."""

import contextlib
import os
import pty
import subprocess


def test_a_detached_run_ends_by_itself_and_logs_follow_it_to_its_end(launcher):
    launcher.write("import time\nprint('one', flush=True)\ntime.sleep(1)\nprint('two')\n")
    run_id = launcher("run", "job.yaml", "--on", "local", "--detach").stdout.strip()
    assert launcher("logs", "--follow", run_id).stdout == "[0/0] one\n[0/0] two\n"
    assert launcher.outcome["state"] == "succeeded"


def test_a_terminal_shows_one_progress_bar_and_whole_lines_of_the_others(launcher):
    launcher.write(
        "import os, sys, time\n"
        "for step in range(5):\n"
        "    if os.environ['RANK'] == '0':\n"
        "        sys.stderr.write(f'\\rstep {step}/5')\n"
        "    else:\n"
        "        print(f'line {step}')\n"
        "    time.sleep(0.2)\n"
        "print('progress', os.environ['LAUNCHER_PROGRESS'])\n"
    )
    ours, theirs = pty.openpty()
    argv = launcher.argv("run", "job.yaml", "--on", "local", "--nproc-per-node", "2")
    process = subprocess.Popen(
        argv, cwd=launcher.folder, env=launcher.env, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that its last writer has gone
        while data := os.read(ours, 4096):
            shown += data
    assert process.wait(timeout=60) == 0, shown
    text = shown.decode()
    assert "\rstep 3/5" in text.replace("\x1b[K", "")
    assert "\x1b[33m[0/1]\x1b[0m line 4\r\n" in text
    assert "progress bar" in text
