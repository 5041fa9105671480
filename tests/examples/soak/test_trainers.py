"""Scripts with a Trainer under the launcher: a worker and a node lost, a stop, another world.

What they log is what they log undisturbed.
"""

import math
import sys
from pathlib import Path

import pytest

from tests.examples.claims.test_trainers import EXAMPLES, SCRIPTS, train
from tests.programs import run_program
from tests.training import clean_environment


def assert_close(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(math.isclose(one[k], other[k], rel_tol=1e-3, abs_tol=1e-5) for k in one), (
            one,
            other,
        )


@pytest.mark.parametrize(
    ("name", "resized"),
    [
        ("Trainer", "3"),
        ("LightningCLI", "4"),
        ("transformers", "1"),
        ("transformers by fsdp", "1"),
        ("transformers by fsdp, in parts", "3"),
        ("accelerate", "4"),
    ],
)
def test_a_trainer_survives_lost_workers_lost_nodes_stops_and_another_world(train, name, resized):
    if (package := name.partition(" ")[0]) in ("transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is missing")
    undisturbed = train("undisturbed", SCRIPTS[name])
    undisturbed.finish(undisturbed.start("--nproc-per-node", "2"))
    expected = undisturbed.rows()

    disturbed = train("disturbed", SCRIPTS[name])
    run = disturbed.start("--nnodes", "2", "--nproc-per-node", "1", KILL="1:17", SLOW_S="0.1")
    disturbed.wait_for(lambda: len(disturbed.events("first-step")) == 2)
    assert (disturbed.folder / "killed").exists()
    disturbed.kill_node(1)
    disturbed.wait_for(lambda: len(disturbed.events("first-step")) == 3)
    disturbed.wait_for(lambda: disturbed.events("progress")[-1]["step"] > 30)
    disturbed.stop()
    disturbed.finish(run, 143)
    (agreed,) = disturbed.events("stop-agreed")
    step = agreed["step"]
    assert 30 < step < 100
    # The same world: nothing is lost or repeated, and the bits are the same.
    before = [row for row in expected if row["step"] < step]
    assert [row for row in disturbed.rows() if row["step"] < step] == before
    assert len(before) >= 15

    disturbed.finish(disturbed.start("--nproc-per-node", resized))
    assert f"goes on after step {step}" in disturbed.output()
    assert_close(disturbed.rows(), expected)
    report = [sys.executable, "-m", "launcher", "report", disturbed.run.resolve().name]
    told = run_program(report, cwd=disturbed.folder, env=clean_environment(), timeout=60)
    assert "productive" in told.stdout


@pytest.mark.parametrize(
    ("example", "rows"), [("lightning_trainer.py", 22), ("transformers_trainer.py", 10)]
)
def test_with_dropout_a_lost_worker_changes_no_bit_of_the_log(train, example, rows):
    pytest.importorskip(example.partition("_")[0], reason=f"{example} needs it")
    script = [f"{EXAMPLES}/{example}", "--epochs", "1"]
    undisturbed, disturbed = train("undisturbed", script), train("disturbed", script)
    undisturbed.finish(undisturbed.start("--nproc-per-node", "2"))
    disturbed.finish(disturbed.start("--nproc-per-node", "2", KILL="1:17", SLOW_S="0.1"))
    assert "goes on after step" in disturbed.output()
    assert len(disturbed.rows()) == rows
    assert disturbed.rows() == undisturbed.rows()


@pytest.mark.parametrize(
    ("example", "joins"),
    [
        ("lightning_trainer.py", "**read_world(),"),
        ("accelerate_loop.py", "cpu=not torch.cuda.is_available()"),
        ("transformers_trainer.py", "use_cpu=not torch.cuda.is_available(),"),
    ],
)
def test_processes_that_would_each_train_by_itself_are_refused(train, tmp_path, example, joins):
    text = Path(EXAMPLES, example).read_text()
    pytest.importorskip(example.partition("_")[0], reason=f"{example} needs it")
    assert joins in text
    script = tmp_path / example
    script.write_text(text.replace(joins, ""))
    training = train("apart", [str(script)])
    training.finish(training.start("--nproc-per-node", "2"), 2)
    assert "2 processes were started, but train in groups of 1" in training.output()
    assert not list((training.folder / "checkpoints").glob("step-*"))
