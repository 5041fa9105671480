"""What a job wants started is looked at where it can be: folders, scripts, modules and mounts."""

import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.code.place import CodePlace
from launcher.code.record import read_code
from launcher.contract.errors import InputError
from launcher.targets.preflight import (
    check_here,
    check_in_code,
    check_own_disks,
    check_there,
    describe_left_behind,
    describe_minority,
    read_script,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Scripts and packages of every kind."""
    for name in ("pkg/sub", "bare", "folder"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("train.py", "pkg/__init__.py", "pkg/main.py", "pkg/sub/__main__.py"):
        (tmp_path / name).touch()
    (tmp_path / "folder/__main__.py").touch()
    return tmp_path


SHELL = {"WANDB_API_KEY": "k", "HF_HOME": "/hf", "MINE": "1", "HOME": "/me", "OTHER": "2"}
SHELL |= {"RANK": "0", "SLURM_PROCID": "0"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import os\nos.environ['MINE'] + os.getenv('HOME')", "MINE"),
        ("import wandb\n", "WANDB_API_KEY"),
        ("from transformers import Trainer\nimport wandb.util", "HF_HOME, WANDB_API_KEY"),
        ("    from helpers import a\n", "PYTHONPATH"),
        ("import os\nMINE = OTHER = 1\n", None),
        ("import os\nos.environ['RANK'], os.environ['SLURM_PROCID']\n", None),
    ],
)
def test_variables_that_a_script_asks_for_and_nodes_do_not_get_are_told(tmp_path, source, names):
    (tmp_path / "lib/helpers").mkdir(parents=True)
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/train.py").write_text(source)
    shell = {**SHELL, "PYTHONPATH": f"{tmp_path}/lib"}
    for command in (("train.py",), ("-m", "pkg.train")):
        told = describe_left_behind(read_script(command, tmp_path), shell, ())
        assert (told is None) == (names is None)
        if told and names:
            assert told.startswith(f"the script asks for {names}, which this shell has")
            assert f"fix: --env {names.replace(', ', ' --env ')}" in told
            assert describe_left_behind(source, shell, names.split(", ")) is None


READS = "import os, torch\ntorch.load(os.environ['CHECKPOINT_DIR'] + '/last')\n"


@pytest.mark.parametrize(
    ("source", "keys", "told"),
    [
        (READS, {"nnodes": "1:2"}, "nnodes is 1:2: after a loss ranks would"),
        (READS, {"nnodes": 2, "max_restarts": 3}, "max_restarts is 3: after a loss ranks would"),
        (
            READS,
            {"nnodes": 2},
            "a rank finds there what its own node wrote; fix: checkpoint_dir",
        ),
        ("import torch\n", {"nnodes": "1:2"}, "a rank finds there what its own node wrote"),
        (READS, {"nnodes": "1:2", "checkpoint_dir": "ephemeral"}, None),
        (f"{READS}from fabric_train import saver\n", {"nnodes": "1:2"}, None),
        ("", {"nnodes": "1:2", "command": ["-m", "train"]}, None),
        (READS, {"nnodes": "1:2", "command": ["-m", "train"]}, "nnodes is 1:2: after a loss ranks"),
    ],
)
def test_a_run_whose_ranks_would_resume_from_their_nodes_own_disks_is_refused_or_told(
    make_job, source, keys, told
):
    job = make_job(**{"command": ["train.py"], **keys})
    if told and told.startswith(("nnodes", "max_restarts")):
        with pytest.raises(InputError, match=re.escape(told)) as refused:
            check_own_disks(job, source)
        assert "or ephemeral if that is meant" in refused.value.hint
    else:
        found = check_own_disks(job, source)
        assert (found is None) == (told is None)
        assert not told or told in str(found)


@pytest.mark.parametrize(
    ("nnodes", "shares_storage", "says"),
    [("1:2", False, True), ("2:3", False, False), ("2", False, False), ("1:2", True, False)],
)
def test_a_loss_after_which_the_other_nodes_may_wait_is_told_beforehand(
    make_plan, local_facts, nnodes, shares_storage, says
):
    plan = make_plan(replace(local_facts, shares_storage=shares_storage), nnodes=nnodes)
    assert bool(describe_minority(plan.nodes[0])) == says


GOOD = [["train.py"], ["./train.py", "--x"], ["folder"], ["-m", "only.python.knows"]]
BAD = [["nothere.py"], ["bare"], ["train.py/x"]]


@pytest.mark.parametrize("command", GOOD)
def test_what_python_may_find_is_let_through(make_plan, tree, command):
    node = make_plan(command=command, workdir=str(tree)).nodes[0]
    check_here(node)


@pytest.mark.parametrize("command", BAD)
def test_what_python_would_not_find_is_refused(make_plan, tree, command):
    node = make_plan(command=command, workdir=str(tree)).nodes[0]
    with pytest.raises(InputError, match="command: found "):
        check_here(node)
    # Python's own word on it.
    argv = [sys.executable, *command]
    assert subprocess.run(argv, cwd=tree, capture_output=True, check=False).returncode != 0


# -- hosts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "workdir", "is_there"),
    [
        ("train.py", None, True),
        ("folder", None, True),
        ("main.py", "pkg", True),
        ("tran.py", None, False),
        ("main.py", None, False),
        ("ignored.py", None, False),
        ("deleted.py", None, False),
        ("/opt/train.py", None, True),
        ("main.py", "link", True),
    ],
)
def test_a_script_outside_of_the_code_that_nodes_get_is_refused(tree, command, workdir, is_there):
    (tree / "link").symlink_to("pkg")
    (tree / ".gitignore").write_text("ignored.py\n")
    for name in ("ignored.py", "deleted.py"):
        (tree / name).touch()
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    subprocess.run(["git", "add", "."], cwd=tree, check=True)
    (tree / "deleted.py").unlink()
    place = CodePlace(root=tree, inner=workdir or "", command=(command,))
    code = read_code(place, tree / "runs")
    if is_there:
        check_in_code(code)
    else:
        with pytest.raises(InputError, match="in the code that nodes get"):
            check_in_code(code)


@pytest.mark.parametrize(
    ("command", "workdir", "told"),
    [
        (["train.py"], None, ""),
        (["tran.py"], None, "(?s)no such file in .*did you mean train.py"),
        (["train.py"], "/shared", ""),
        (["/shared/train.py"], None, ""),
        (["-m", "pkg.main"], None, ""),
    ],
)
def test_a_script_that_nodes_without_an_image_do_not_get_is_refused(
    make_plan, local_facts, tree, monkeypatch, command, workdir, told
):
    monkeypatch.chdir(tree)
    run_dir = "/home/me/.launcher/runs/digits-0a1b2c"
    node = make_plan(replace(local_facts, cwd=run_dir), command=command, workdir=workdir).nodes[0]
    if not told:
        check_there(node, run_dir)
        return
    with pytest.raises(InputError) as caught:
        check_there(node, run_dir)
    assert re.search(told, str(caught.value))


def test_a_port_that_is_taken_is_told_before_nodes_wait_at_it(launcher):
    launcher.write("", "name: tiny\nnproc_per_node: 1\nnnodes: 2\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = launcher("run", "job.yaml", "--on", "local", "--set", f"rdzv.port={port}")
    assert done.returncode == 2, done.stderr
    assert f"rdzv.port: {port} is in use on this machine" in done.stderr
    assert not (launcher.folder / "runs").exists()
