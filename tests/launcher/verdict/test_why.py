"""``launcher why`` as a person types it, on real runs of local processes."""

import shlex
import sys

from launcher.contract.causes import Cause
from tests.launcher.runner import PREFIX
from tests.programs import run_program

TWO = PREFIX.replace("nproc_per_node: 1", "nproc_per_node: 2")
LOCAL = ("run", "job.yaml", "--on", "local")
ONE_RAISES = """\
import os, time; os.environ["RANK"] == "0" and open("up", "w")
while os.environ["RANK"] == "1":
    if os.path.exists("up"): open("/data/nowhere/train.bin")
time.sleep(60)
"""
"""Rank 1, once rank 0 has begun."""


def last_line(text: str) -> str:
    return text.rstrip("\n").splitlines()[-1]


def test_the_last_line_of_a_failed_run_is_its_verdict_and_why_tells_what_fell_with_it(launcher):
    launcher.write(ONE_RAISES, TWO)
    done = launcher(*LOCAL)
    told = "missing-file (certain), rank 1 on node 0, train.py:3; fix: name a path that every node"
    told += " has, or mount it; python -m launcher docs missing-file"
    assert last_line(done.stderr).startswith(f"  why          {told}; ")
    assert launcher.outcome["verdict"] == told
    assert told in launcher("status").stdout
    headline, where, fix, fell = launcher("why").stdout.splitlines()
    assert "missing-file, certain: FileNotFoundError: [Errno 2]" in headline
    assert where == "  where: rank 1 on node 0, train.py:3"
    assert fix.endswith("; python -m launcher docs missing-file")
    assert fell == "  failed after it: rank 0"
    # The traceback has a line that marks what failed.
    assert "rank-1/error.json:5: FileNotFoundError" in launcher("why", "--evidence").stdout


def test_the_fix_of_an_import_names_what_lies_in_the_folder(launcher):
    package = launcher.folder / "src" / "toolkit"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "net.py").write_text("from . import layers\n")
    launcher.write("import toolkit.net\n")
    launcher(*LOCAL)
    said = launcher("why").stdout
    assert "missing-module, certain: ModuleNotFoundError: No module named 'toolkit'" in said
    assert "fix: --set env.PYTHONPATH=src, or pip install -e .;" in said
    launcher("run", "src/toolkit/net.py", "--on", "local", "--nproc-per-node", "1")
    said = launcher("why").stdout
    assert "wrong-argument, certain: ImportError: attempted relative import" in said
    assert "fix: from the folder above the package: -m toolkit.net;" in said


def test_the_fix_fits_what_ran_the_workers_and_what_limited_them(launcher):
    launcher.write("import toolkit\n")
    ended = launcher(*LOCAL).stderr
    told = f"fix: {shlex.quote(sys.executable)} -m pip install toolkit; or another Python: "
    assert ended.count("pip install") == 1
    assert told in last_line(ended)
    assert told in launcher("why").stdout
    launcher.write(
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "bytearray(1 << 31)\n"
    )
    assert "host-out-of-memory (certain)" in last_line(said := launcher(*LOCAL).stderr)
    assert "fix: ulimit -v unlimited there, or hold less;" in last_line(said)


def test_what_a_side_thread_raised_is_not_why_its_process_ended_by_itself(launcher):
    launcher.write(
        """\
import sys, threading
def push(): raise RuntimeError("the tracker answered 503")
thread = threading.Thread(target=push)
thread.start()
thread.join()
print("accuracy is below the limit", file=sys.stderr)
sys.exit(3)
"""
    )
    launcher(*LOCAL)
    headline, where, *_ = launcher("why").stdout.splitlines()
    assert "script-error, likely: exit code 3: accuracy is below the limit" in headline
    assert where == "  where: rank 0 on node 0"


def test_a_log_on_stdin_is_judged_when_its_writer_ends(launcher):
    text = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    asked = launcher.argv("why", "-")
    done = run_program(asked, input=text, cwd=launcher.folder, check=True)
    assert done.stdout.startswith(f"stdin: {Cause.WRONG_ARCHITECTURE}, likely: RuntimeError")


def test_a_word_that_is_no_run_and_no_path_is_refused(launcher, tmp_path):
    told = launcher.fails(2, "why", "nothing-here")
    assert "error: no run 'nothing-here'" in told
