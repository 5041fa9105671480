"""``launcher import``: what people have, and the job file that it becomes."""

import contextlib
import re
from pathlib import Path

import pytest

from launcher.api.choose_target import targets_of_jobs
from launcher.contract.errors import InputError
from launcher.job.file import parse_job
from launcher.manifests.imports.draft import render_draft
from launcher.manifests.imports.read import import_text
from tests.launcher.runner import ROOT, Runner

INPUTS = sorted((Path(__file__).parent / "inputs").iterdir())
NO_SCRIPT = ("accelerate-deepspeed.yaml", "accelerate-fsdp.yaml")
STARTERS = re.compile(
    r"[\w/]*(torchrun|python3?|accelerate|launch|deepspeed|horovodrun|mpirun|mpiexec|srun|docker|podman)"
    r"|nohup|all|\$PWD|\$\{NGPU|type|bind|source|target|readonly|sudo|run|bash|-c|&&|&|torch.distributed.(run|launch)|torchelastic.distributed.launch"
)


def imported(path: Path) -> str:
    needs = path.name in NO_SCRIPT or path.name.startswith("hosts-")
    command = ["train.py", "--epochs", "3"] if needs else []
    return render_draft(import_text(path.read_text(), path.name, command), targets_of_jobs())


def test_each_input_becomes_this_job_file(expect_golden):
    assert len(INPUTS) >= 30
    texts = [f"## {path.name}\n{imported(path)}" for path in INPUTS]
    expect_golden("import.txt", "\n".join(texts))


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_it_is_a_good_job_file_in_which_no_word_of_a_launch_line_is_missing(path):
    text = imported(path)
    assert parse_job(text, "job.yaml").command
    flat = re.sub(r"[-_'\"\s,{}\[\]]", "", text)
    words = path.read_text().replace("\\\n", " ").split() if path.suffix == ".txt" else []
    for word in words if not path.name.startswith("hosts-") else ():
        for part in re.split(r"[=:,@]", word.strip("'\"")):
            plain = re.sub(r"[-_'\"\s,{}\[\]]", "", part)
            is_option_with_a_key = word.startswith("-") and part == re.split("[=:,]", word)[0]
            is_count = plain.isdigit() or re.fullmatch(r"\d+g", plain)
            if not (STARTERS.fullmatch(part) or is_option_with_a_key or is_count):
                assert plain in flat, f"{word} of {path.name}"


BATCH = "#!/bin/bash\n#SBATCH -N 2\n"


@pytest.mark.parametrize(
    ("text", "source", "what"),
    [
        ("torchrun --nproc-per-node=8", "line", "it names no script"),
        ("torchrun --nproc-per-node", "line", "it names no script"),
        ("torchrun train.py --name 'a b", "line", "a quotation without an end"),
        ("mpirun -np 8", "line", "it names no script"),
        ("accelerate config train.py", "line", "accelerate config: it starts no training"),
        ("docker run --gpus all", "line", "no image"),
        ("docker build . # python train.py", "line", "it starts no training"),
        (f"{BATCH}srun hostname\nscontrol show job\n", "a.sbatch", "no line starts torchrun"),
        (f"{BATCH}make -j\n", "a.sbatch", "no line starts torchrun"),
        ("kind: PyTorchJob\napiVersion: kubeflow.org/v1beta2\n", "a.yaml", "kubeflow.org/v1beta2"),
        ("kind: Deployment\napiVersion: apps/v1\n", "a.yaml", "none of a launch line"),
        ("{{- if .Values.gpu }}\nkind: PyTorchJob\n", "chart.yaml", "chart.yaml:1"),
        ("num_processes: 4\ndistributed_type: MULTI_GPU\n", "acc.yaml", "it names no script"),
        ("node1 slots=4\nnode2 slots=4\n", "hosts", "it names no script"),
        ("", "empty", "the file is empty"),
        ("hello world, and so on", "text", "found a single value"),
    ],
    ids=lambda text: text[:20],
)
def test_what_cannot_be_imported_is_one_message(text, source, what):
    with pytest.raises(InputError) as refused:
        render_draft(import_text(text, source))
    assert what in str(refused.value)
    assert "fix: " in str(refused.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "", "#SBATCH", "#!\n#SBATCH --nodes", "#!\n#SBATCH --nodes=x -N -n -n - --", "srun",
        "srun torchrun --nnodes", "torchrun --nnodes=$", "srun bash -c 'torchrun", "a=`b", "a=${b",
        "cat <<EOF\nx", "cat <<", "$", "\\", "\x00", "srun bash -c", "eval eval",
        '"$(' * 5000, "${" * 5000, "a=" + "$(" * 3000 + ")" * 3000, "`" * 9999, "'\n" * 2001,
        '"$(x)' * 2000, "srun torchrun " + "$a" * 30_000, "#SBATCH --gpus=²",
        *((INPUTS[0].parent / "llama.sbatch").read_text()[:end] for end in range(0, 900, 30)),
    ],
    ids=range(55),
)  # fmt: skip
def test_a_batch_script_of_any_shape_is_a_draft_or_one_message_and_is_read_soon(text):
    for whole in (text, f"#!/bin/bash\n#SBATCH -N 2\n{text}"):
        with contextlib.suppress(InputError):
            import_text(whole, "job.sbatch")


@pytest.mark.parametrize(
    ("line", "keys", "left"),
    [
        ("mpirun -np 3 python train.py", {"nproc_per_node": 3}, ""),
        ("mpirun -np 6 -H a,b python train.py", {"nproc_per_node": 3, "nnodes": 2}, ""),
        ("mpirun -np 3 -H a,b python train.py", {}, "no equal number on each of 2 nodes"),
        ("torchrun --nproc-per-node=0 --nnodes=2 train.py", {"nnodes": 2}, "nproc_per_node"),
    ],
)
def test_processes_are_spread_evenly_and_a_number_that_no_job_has_is_left_out(line, keys, left):
    draft = import_text(line, "line")
    text = render_draft(draft)
    found = {key: draft.keys.get(key) for key in ("nproc_per_node", "nnodes")}
    assert {key: value for key, value in found.items() if value is not None} == keys
    assert bool(draft.left) is bool(left)
    assert left in text


def test_what_stands_in_comments_strings_and_here_documents_is_no_launch():
    draft = import_text(
        f"{BATCH}# torchrun other.py\necho 'torchrun other.py'\npip install torchrun\n"
        "cat > run.sh <<'EOF'\ntorchrun other.py\nEOF\n"
        "srun bash -c '\ntorchrun train.py' # here\nsrun torchrun next.py\n",
        "job.sbatch",
    )
    assert draft.keys["command"] == ["train.py"]
    assert [word for word, _ in draft.left if "next.py" in word] == ["srun torchrun next.py"]


def test_a_batch_script_without_a_signal_is_told_and_sbatch_reads_no_option_below_a_command():
    lacks = "--signal, which the script lacks"
    for options, start, said in [("", "", True), ("\n# cd /x\n#SBATCH --signal=USR1@9", "", False),
                                 ("", "#SBATCH --signal=USR1@9\n", True)]:  # fmt: skip
        text = f"#!/bin/bash\n#SBATCH -N 2{options}\ncd /x\n{start}srun torchrun train.py\n"
        assert (lacks in render_draft(import_text(text, "job.sbatch"))) is said


def test_a_quoted_line_may_stand_behind_the_dashes_too(tmp_path):
    runner = Runner(tmp_path)
    said = runner.well("import", "--", "torchrun --nproc-per-node=2 train.py --lr 0.1").stdout
    assert parse_job(said, "job.yaml").command == ("train.py", "--lr", "0.1")


# -- a script --------------------------------------------------------------------------------------

SCRIPTS = sorted((ROOT / "tests/launcher/manifests/scripts/right").glob("*.py"))[:12]


def test_each_script_gets_this_job_file(expect_golden):
    from launcher.manifests.imports.script import render_job

    assert len(SCRIPTS) == 12
    texts = [render_job([path.name], path.read_text(), ["requirements.txt"]) for path in SCRIPTS]
    for text in texts:
        parse_job(text, "job.yaml")
    only_saves = "import torch\nfor step in range(9):\n    torch.save(step, 'a.pt')\n"
    assert "max_restarts: 0\n" in render_job(["a.py"], only_saves, [])
    expect_golden("init.txt", "\n".join(texts))


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.py", "def train(:\n", "a.py:1"),
        ("a.py", "import os\nprint 'Python 2'\n", "a.py:2"),
        ("a.ipynb", '{"cells": []}', "a notebook"),
        ("a.py", "x = 1\n" * 10**6, "1 MiB"),
    ],
    ids=("cut", "Python 2", "notebook", "5 MB"),
)
def test_import_refuses_what_is_no_script(tmp_path, name, text, what):
    runner = Runner(tmp_path)
    (tmp_path / name).write_text(text)
    told = runner.fails(2, "import", name, "-o", "job.yaml")
    assert what in told
    assert not (tmp_path / "job.yaml").exists()
