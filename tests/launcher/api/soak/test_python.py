"""``from launcher import Job, run``: real runs from scripts, threads, event loops and this test."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import InputError, find, run
from launcher.contract.protocol import RUN_ID
from launcher.targets import process_table
from tests.launcher.api.test_python import TRAIN, WAITS, is_up, place, python, tiny
from tests.launcher.runner import ROOT, WAITING, Runner
from tests.waiting import wait_until


def interrupted_at(place: Runner, slow: str, reached: Path) -> None:
    """Runs ``slow`` in the launcher that a script starts, and interrupts that once it is there."""
    (place.folder / "late").mkdir()
    (place.folder / "late/late.py").write_text(slow)
    (place.folder / "late/sitecustomize.py").write_text(
        "import sys\nif 'run' in sys.argv: import late\n"
    )
    place.env["PYTHONPATH"] += os.pathsep + str(place.folder / "late")
    caller = python(place, WAITS)
    wait_until(reached.exists)
    caller.send_signal(signal.SIGINT)
    assert caller.wait() != 0
    training = find()
    assert training.wait(timeout=60).cause == "stop-requested"
    assert process_table.find(**{RUN_ID: training.run_id}) == ()


SLOW = {
    "while it is submitted": """
import launcher.targets.local.target as local
submit = local.LocalTarget.submit
local.LocalTarget.submit = lambda self, plan: (wait(), submit(self, plan))
""",
    "before its id is told": """
import launcher.commands.run as jobs
jobs._note_left_behind = lambda *_: wait()
""",
    "after it": """
import launcher.commands.run as jobs
jobs.print = lambda *words, **options: (print(*words, **options), wait())
""",
}
"""What takes a while in the launcher, as the submission of an image to pull does."""


@pytest.mark.parametrize("moment", SLOW)
def test_a_run_whose_start_is_interrupted_ends_all_the_same(place, moment):
    place.write(WAITING)
    reached = place.folder / "reached"
    wait = f"def wait():\n    pathlib.Path({str(reached)!r}).touch()\n    time.sleep(1)\n"
    interrupted_at(place, f"import pathlib, time\n{wait}{SLOW[moment]}", reached)


# -- a notebook, and the page ---------------------------------------------------------------------


class Notebook:
    """A real Jupyter kernel, in a place of its own."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(cwd=str(folder), env=env)

    def start(self, code: str) -> str:
        started: str = self._client.execute(code)
        return started

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        self._manager.restart_kernel(now=True)
        self._client.wait_for_ready(timeout=60)

    def finish(self, started: str) -> str:
        """The cell's result, or the name of its exception."""
        result = ""
        while True:
            message = self._client.get_iopub_msg(timeout=120)
            content = message["content"]
            if message["parent_header"].get("msg_id") != started:
                continue
            if message["msg_type"] == "execute_result":
                result = content["data"]["text/plain"]
            elif message["msg_type"] == "error":
                result = content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return result

    def wait_for_output(self, text: str) -> None:
        while self._client.get_iopub_msg(timeout=120)["content"].get("text") != text:
            pass

    def __call__(self, code: str) -> str:
        return self.finish(self.start(code))

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(place: Runner) -> Iterator[Notebook]:
    pytest.importorskip("ipykernel")
    opened = Notebook(place.folder, place.env)
    yield opened
    opened.close()


def test_interrupt_and_restart_of_a_notebook_leave_the_run_alone(place, notebook):
    place.write(WAITING)
    notebook(WAITS)
    training = find()
    wait_until(is_up(training))
    cell = notebook.start("print('waiting', flush=True); training.wait()")
    notebook.wait_for_output("waiting\n")
    notebook.interrupt()
    assert notebook.finish(cell) == "KeyboardInterrupt"
    assert notebook("training.outcome, training.status().state") == "(None, 'running')"
    notebook.restart()
    assert training.outcome is None
    assert notebook("from launcher import find; find().stop().cause") == "'stop-requested'"


SCRIPTS, _, CELLS = (ROOT / "docs/python.md").read_text().partition("\n## In a notebook\n")


def blocks(text: str) -> list[str]:
    return [part.partition("```")[0] for part in text.split("```python\n")[1:]]


def test_the_scripts_of_the_page_work(place, capsys):
    train, start, mistakes, sweep = blocks(SCRIPTS)
    exec(compile(mistakes, "docs/python.md", "exec"), {})
    assert capsys.readouterr().out.strip() in SCRIPTS
    (place.folder / "train.py").write_text(train)
    told = []
    for script in (start, sweep):
        caller = python(place, script)
        told.append(caller.communicate(timeout=250)[0].decode().splitlines())
        assert caller.returncode == 0
    assert told[0][-1] == "succeeded completed 0.30000001192092896"
    assert told[1] == ["{'loss': 0.10000000149011612}", "{'loss': 0.20000000298023224}"]


def test_the_notebook_of_the_page_works(notebook):
    shown = [notebook(cell) for cell in blocks(CELLS)]
    assert shown[-1] == "({'ranks': '2'}, ['0', '1'])"
    assert json.loads((find().folder / "metrics.json").read_text()) == {"ranks": "2"}
