"""A report as a page: text is text, it asks for nothing, stays small, and always comes."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.runner import Runner

SCRIPT = """
import os, sys
from fabric_train.loop.ledger import Loaded, TrainStarted, open_ledger
from fabric_train.worker_env import parse_worker_env
import torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=float(sys.argv[1]))
ledger = open_ledger(parse_worker_env(os.environ))
ledger.write(TrainStarted(world_size=1, generation=None))
ledger.write(Loaded(step=0))
for step in range(1, 4):
    optimizer.step()
    ledger.on_step(step, 8, lambda: 2.0)
ledger.on_trained(3, 1.0)
raise ValueError("loss is nan <script>alert(1)</script>")
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Two runs that failed, with other learning rates."""
    runner = Runner(tmp_path_factory.mktemp("a folder"))
    runner.env["PYTHONPATH"] = os.getcwd()
    for name, rate in (("first", "0.5"), ("second", "0.25")):
        runner.write(
            SCRIPT, f"name: {name}\nstart: fork\nnproc_per_node: 1\nenv: {{RATE: '{rate}'}}\n"
        )
        runner("run", "job.yaml", "--on", "local", "--", rate)
    return runner


def page_of(runs: Runner, *words: str) -> str:
    done = runs("report", *words, "--html", "my page.html")
    assert done.returncode == 0, done.stderr
    return (runs.folder / "my page.html").read_text()


def test_the_command_writes_the_page_of_a_run_or_of_two_and_an_index(runs):
    old, new = sorted(runs.run_ids())
    page = page_of(runs, old)
    assert "nan-loss, certain" in page
    assert "ValueError: loss is nan &lt;script&gt;" in page
    assert "train.py&quot;, line" in page  # the stack
    assert ">learning rate<" in page
    for told in ("<td>torch</td>", "<td>CPUs</td>", "<td>env.RATE</td><td>0.5</td>"):
        assert told in page, told
    both = page_of(runs, old, "--with", new)
    assert "<td>env.RATE</td><td>0.5</td><td>0.25</td>" in both
    assert both.count("nan-loss, certain") == 2
    runs("report", old, "--html", f"runs/{old}/report.html")
    runs("ps", "--html", "runs/index.html")
    index = (runs.folder / "runs/index.html").read_text()
    assert f'<a href="{old}/report.html">{old}</a>' in index
    assert f"<td>{new}</td>" in index
    refused = runs("report", "--html", "absent/page.html")
    assert (refused.returncode, "cannot be written" in refused.stderr) == (2, True)
    assert runs("report", "--with", old).returncode == 2


def lose_plan(run: Path) -> None:
    (run / "plan.json").unlink()


def change_plan(run: Path) -> None:
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "schema": 1}))


def lose_most(run: Path) -> None:
    for name in ("ledger", "nodes"):
        shutil.rmtree(run / name)
    for name in ("submitted.json", "job.json", "launcher.json"):
        (run / name).unlink()


def tear(run: Path) -> None:
    for path in (run / "ledger").iterdir():
        path.write_bytes(path.read_bytes() + b'{"event": "progress", "at": 1e\n\x00\xff\n"x"\n')


def jump(run: Path) -> None:
    for path in (run / "ledger").glob("agent-*"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        later = [{**event, "at": event["at"] + 86_400} for event in events[2:]]
        path.write_text("\n".join(map(json.dumps, [*events[:2], *later])))


def write_nonsense(run: Path) -> None:
    (path,) = (run / "ledger").glob("train-*")
    events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    odd = [{"step": "many"}, {"step": None}, {"loss": {}}, {"lr": [1]}, {"samples": "1"}]
    events += [{**events[-1], **one} for one in odd]
    path.write_text("\n".join(map(json.dumps, events)))


def fill(run: Path) -> None:
    for path in run.glob("nodes/*/*/attempt-*/rank-*/std*"):
        os.truncate(path, 10 << 30)  # sparse: it takes no room


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lose_plan, "plan.json is not the plan of a run"),
        (change_plan, "schema 2"),
        (lose_most, "submitted.json: times count from the first event"),
        (tear, "lines of the ledger are torn"),
        (jump, "jumped by +86400 s"),
        (write_nonsense, ">learning rate<"),
        (fill, "nan-loss"),
    ],
)
def test_whatever_is_left_of_a_run_makes_a_page_that_says_what_is_missing(runs, damage, told):
    run_id = sorted(runs.run_ids())[0]
    copy = runs.folder / "runs" / "damaged-20250101-000000-aaaa"
    shutil.copytree(runs.folder / "runs" / run_id, copy, symlinks=True)
    try:
        damage(copy)
        page = page_of(runs, copy.name)
        assert told in page
        assert "<script" not in page
        assert copy.name in page
    finally:
        shutil.rmtree(copy)
