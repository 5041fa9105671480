import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.contract.node_plan import Env
from launcher.targets.processes import ProcessSettings, render_processes
from launcher.targets.subprocesses.shell import render_exports, render_line

PLAIN = {"engine": "torchrun"}
AWKWARD = "a 'b' \"c\" $HOME `id` \\ \n* é"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("local-1x2.sh", {**PLAIN, "nproc_per_node": 2}),
        ("local-static-2x1.sh", {**PLAIN, "nnodes": 2, "nproc_per_node": 1}),
        (
            "local-elastic-1-3.sh",
            {
                "nnodes": "1:3",
                "nproc_per_node": 1,
                "max_restarts": 3,
                **PLAIN,
                "env": {"GREETING": "it's $5"},
                "secrets": ["WANDB_API_KEY"],
                "checkpoint_dir": "check points",
            },
        ),
    ],
)
def test_the_whole_script(make_plan, expect_golden, name, fields):
    expect_golden(name, render_processes(make_plan(**fields)).shell())


def test_gpus_of_nodes_on_one_machine_are_disjoint(make_plan, local_facts, cuda_facts):
    facts = replace(local_facts, accelerator="cuda", machine=cuda_facts.machine)
    artifact = render_processes(make_plan(facts, nnodes=2, nproc_per_node=2))
    visible = [dict(process.env)["CUDA_VISIBLE_DEVICES"] for process in artifact.processes]
    assert visible == ["0,1", "2,3"]


def test_only_the_chosen_nodes_are_rendered(make_plan):
    artifact = render_processes(make_plan(nnodes=3), only=(1,))
    assert [process.node.node_index for process in artifact.processes] == [1]


@pytest.mark.parametrize("value", [AWKWARD, "", "-x", "two\nlines"])
def test_a_shell_gets_words_and_variables_byte_for_byte(value):
    line = render_line(("printf", "%s|%s", value, "end"))
    out = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout
    assert out.decode() == f"{value}|end"
    exports: Env = (("VALUE", value),)
    script = render_exports(exports) + 'printf %s "$VALUE"'
    assert subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout == (
        value.encode()
    )


def test_the_script_runs_by_hand_without_this_project(make_plan, local_facts, tmp_path):
    """``torchrun`` is stood in for by a program that records what it was given."""
    recorder = tmp_path / "python"
    recorder.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$MARK" "${RANK-unset}" "$@" >"$OUT"\n')
    recorder.chmod(0o755)
    own = ProcessSettings(python=str(recorder))
    facts = replace(local_facts, own=own, run_root=str(tmp_path / "runs"), cwd=str(tmp_path))
    out = str(tmp_path / "out")
    plan = make_plan(facts, command=["t.py", AWKWARD], env={"MARK": "m", "OUT": out}, **PLAIN)
    script = tmp_path / "artifact.sh"
    script.write_text(render_processes(plan).shell())
    subprocess.run(["sh", str(script)], env={**os.environ, "RANK": "7"}, check=True, timeout=60)
    lines = Path(out).read_text()
    assert lines.startswith(f"{tmp_path}\nm\nunset\n-m\ntorch.distributed.run\n--nnodes=1\n")
    assert lines.endswith(f"t.py\n{AWKWARD}\n")
