"""``launcher check train.py``: each rule, a script that breaks it, and one that nearly does."""

import ast
import importlib.util
import json
import os
import re
import time
from pathlib import Path

import pytest

from launcher.commands.cli import run_command
from launcher.contract.errors import ExitCode
from launcher.manifests.check import check_manifests, render_checked
from launcher.manifests.scripts import lightning
from launcher.manifests.scripts.check import (
    MAX_AT_START,
    check_training_script,
    glance_at,
    is_training_script,
)
from launcher.manifests.scripts.rules import ScriptRule
from tests.launcher.manifests.cases import case

SCRIPTS = Path(__file__).parent
ROOT = Path(__file__).parents[4]
DOCS = ROOT / "docs/check-scripts.md"
GOLDEN = ROOT / "tests/golden/check-training-scripts.txt"
FAULT = re.compile(r"# fault: ([a-z-]+)")
Place = tuple[int, str]


def read(name: str) -> str:
    return (SCRIPTS / f"{name}.py").read_text()


def places_of(text: str) -> set[Place]:
    """Line and rule of each finding."""
    return {(one.line, one.rule.id) for one in check_training_script(text, "train.py")}


def rules_of(text: str) -> set[str]:
    return {rule for _, rule in places_of(text)}


def faults_of(text: str) -> set[Place]:
    """Line and rule of each fault that a script says it has."""
    lines = enumerate(text.splitlines(), 1)
    return {(i, fault) for i, line in lines for fault in FAULT.findall(line)}


R = ScriptRule
SETUP = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n    init_process_group('
HOLDS = 'self.register_buffer("signal", alphas.sqrt())'
MP = "mp.spawn(work, args=(2,), nprocs=2)"
CASES = [
    case(R.UNREADABLE, "ddp_trainer", "import os\n", "import os\nprint 1\n"),
    case(R.FIRST_GPU, "ddp_trainer", "x.to(self.local_rank)", 'x.to("cuda:0")', 'x.to("cuda")'),
    case(R.FIRST_GPU, "ddp_trainer", "int(os.environ[\"LOCAL_RANK\"]))", "0)"),
    case(R.FIRST_GPU, "slurm_or_torchrun", "    torch.cuda.set_device(local_rank)\n", "",
         "    torch.accelerator.set_device_index(local_rank)\n"),
    case(R.FIRST_GPU, "gpt_from_config", "model.to(device)\n", "model.cuda(1)\n",
         "if not ddp:\n    model.cuda(1)\n"),
    case(R.RANK_AS_DEVICE, "ddp_trainer", "device_ids=[self.local_rank]",
         "device_ids=[self.global_rank]", "device_ids=[self.global_rank % 8]"),
    case(R.RANK_AS_DEVICE, "hydra_config", "os.environ['LOCAL_RANK']", "dist.get_rank()",
         "dist.get_node_local_rank()"),
    case(R.RANK_AS_DEVICE, "diffusion", "set_device(device)", "set_device(rank)"),
    case(R.VISIBLE_DEVICES, "ddp_trainer", "class ToyData",
         'os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"\nclass ToyData',
         'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\nclass ToyData'),
    case(R.DATA_PARALLEL, "ddp_trainer", "DDP(self.model,", "torch.nn.DataParallel(self.model,"),
    case(R.DATA_PARALLEL, "ppo_distributed", "Agent(envs).to(device)",
         "nn.DataParallel(Agent(envs))",
         'nn.DataParallel(Agent(envs)) if "RANK" not in os.environ else Agent(envs)'),
    case(R.NCCL_WITHOUT_DEVICE, "uneven_collectives", "torch.cuda.set_device(local_rank)\n",
         "\n", 'device = f"cuda:{local_rank}"\n    torch.cuda.set_device(device)\n'),
    case(R.NCCL_WITHOUT_DEVICE, "gan_two_optimisers",
         'torch.cuda.set_device(device)\ndist.init_process_group("nccl", device_id=device)',
         'dist.init_process_group("nccl")', 'dist.init_process_group("nccl", device_id=device)'),
    case(R.TENSOR_NOT_BUFFER, "diffusion", HOLDS, "self.signal = alphas.sqrt()",
         "self.signal = nn.Parameter(alphas.sqrt(), requires_grad=False)"),
    case(R.TENSOR_NOT_BUFFER, "diffusion", HOLDS, "self.signal = torch.zeros(3)",
         "self.signal = made.zeros(3)"),
    case(R.TENSOR_NOT_BUFFER, "lightning_gan", "self.validation_z.type_as(self.generator.weight)",
         "self.validation_z + 1"),
    case(R.NO_SET_EPOCH, "iterable_shards", "loader = DataLoader(Lines(\"shards/*.jsonl\"), ",
         "for epoch in (1, 2):\n      loader = DataLoader(data, sampler=torch.utils.data."
         "DistributedSampler(data), ",
         "for epoch in (1, 2):\n      loader = DataLoader(data, sampler=torch.utils.data."
         "DistributedSampler(data, shuffle=False), "),
    case(R.NO_SET_EPOCH, "hydra_config", "self.sampler.set_epoch(epoch)", "pass"),
    case(R.LOADER_WITHOUT_SAMPLER, "ddp_trainer", "shuffle=False, sampler=DistributedSampler(data)",
         "shuffle=True", "sampler=DistributedSampler(data)"),
    case(R.LOADER_WITHOUT_SAMPLER, "gan_two_optimisers", "sampler=sampler, ", "",
         "batch_sampler=split(sampler), "),
    case(R.LOADER_WITHOUT_SAMPLER, "fabric_mnist",
         "    loader = fabric.setup_dataloaders(loader)\n", ""),
    case(R.LOADER_WITHOUT_SAMPLER, "iterable_shards",
         "part = dist.get_rank() * workers + worker\n"
         "        parts = dist.get_world_size() * workers",
         "part, parts = worker, workers", "part, parts = dist.get_rank(), 8"),
    case(R.SAMPLER_WITH_SHUFFLE, "imagenet", "shuffle=(train_sampler is None)", "shuffle=True",
         "shuffle=train_sampler is None"),
    case(R.WORKER_SEEDS, "worker_generators", "worker_init_fn=reseed, ", ""),
    case(R.WORKER_SEEDS, "worker_generators", "num_workers=4, worker_init_fn=reseed, ",
         "num_workers=4, ", "num_workers=0, "),
    case(R.WORKER_SEEDS, "worker_generators", "    loader = DataLoader(data, batch_size=32, "
         "sampler=sampler, num_workers=4, worker_init_fn=reseed, ",
         "    few = DataLoader(data, sampler=sampler)\n"
         "    loader = DataLoader(data, sampler=sampler, num_workers=4, "),
    case(R.WORKER_SEEDS, "lightning_gan", "def main():",
         "import random\nrandom.seed(3)\nclass Rows(torch.utils.data.Dataset):\n"
         "    def __getitem__(self, i):\n        return random.random()\n"
         "rows = DataLoader(Rows(), num_workers=2)\ndef main():",
         "import random\nrandom.seed(3)\ntorch.manual_seed(3)\nclass Rows:\n"
         "    def __getitem__(self, i):\n        return random.random()\n"
         "rows = DataLoader(Rows(), num_workers=2)\ndef main():"),
    case(R.DOWNLOAD_BY_ALL, "fabric_mnist", "with fabric.rank_zero_first(local=False)",
         "if True"),
    case(R.DOWNLOAD_BY_ALL, "lightning_classifier", "def prepare_data(", "def train_data(",
         "def prepare_data("),
    case(R.DOWNLOAD_WITHOUT_BARRIER, "first_one_downloads", "    fetch_labels(local_rank)\n",
         '    extra = datasets.MNIST("data", download=local_rank == 0)\n',
         '    extra = datasets.MNIST("data", download=local_rank == 0)\n    dist.barrier()\n'),
    case(R.PICKLED_FUNCTION, "spawn_unless_launched", MP, "mp.spawn(lambda i: work(i, 2))",
         "mp.spawn(functools.partial(work, world_size=2))"),
    case(R.PICKLED_FUNCTION, "worker_generators", "worker_init_fn=reseed,",
         'worker_init_fn=lambda i: None, multiprocessing_context="spawn",',
         'worker_init_fn=lambda i: None, multiprocessing_context="fork",'),
    case(R.ADDRESS_SET, "ddp_trainer", SETUP, f'os.environ["MASTER_PORT"] = "1234"\n    {SETUP}',
         f'os.environ.setdefault("MASTER_PORT", "1234")\n    {SETUP}'),
    case(R.ADDRESS_SET, "ddp_trainer", SETUP, f'os.environ.update({{"RANK": "0"}})\n    {SETUP}',
         f'os.environ.update({{"NCCL_DEBUG": "INFO"}})\n    {SETUP}'),
    case(R.ADDRESS_SET, "slurm_or_torchrun", 'if "RANK" not in os.environ:', "if True:"),
    case(R.ADDRESS_SET, "ddp_trainer", '(backend="nccl")', '("nccl", "tcp://localhost:1")',
         '("nccl", "env://")'),
    case(R.OWN_WORLD, "spawn_unless_launched", 'if "LOCAL_RANK" in os.environ:', "if later:"),
    case(R.OWN_WORLD, "gloo_regression", "    main()\n",
         "    import multiprocessing as mp\n    mp.Process(target=main).start()\n",
         "    import multiprocessing as mp\n    mp.Process(target=print).start()\n"),
    case(R.WORLD_SIZE_OF_NODE, "uneven_collectives", "evens = ",
         "world_size = torch.cuda.device_count()\n    evens = ",
         "gpus = torch.cuda.device_count()\n    evens = "),
    case(R.SOME_RANKS_ONLY, "diffusion", "                dist.barrier()\n",
         "                    dist.barrier()\n"),
    case(R.SOME_RANKS_ONLY, "uneven_collectives", "dist.all_reduce(loss, group=evens)",
         "dist.all_reduce(loss)", "dist.all_reduce(loss, dist.ReduceOp.SUM, evens_group)"),
    case(R.SOME_RANKS_ONLY, "uneven_collectives",
         "    else:\n        box = [None]\n        dist.broadcast_object_list(box, src=0)\n", ""),
    case(R.SOME_RANKS_ONLY, "amp_resnet", "        if distributed:\n            meter",
         "        if distributed and rank == 0:\n            meter"),
    case(R.SOME_RANKS_ONLY, "deepspeed_lm", "        engine.save_checkpoint",
         "        if args.local_rank == 0: engine.save_checkpoint",
         "        if args.local_rank != -1: engine.save_checkpoint"),
    case(R.SOME_RANKS_ONLY, "hydra_config", "            dist.all_reduce(mean)\n",
         "            if self.is_main: dist.all_reduce(mean)\n"),
    case(R.GROUP_DESTROYED_EARLY, "gloo_regression", "    return loss.item()",
         "    dist.destroy_process_group()", "    del model\n    dist.destroy_process_group()"),
    case(R.GROUP_DESTROYED_EARLY, "gan_two_optimisers", "dist.destroy_process_group()",
         "dist.destroy_process_group()\nprint(netG(fixed_noise))"),
    case(R.FABRIC_CPU, "fabric_mnist", 'accelerator="gpu", devices=hparams.devices',
         'accelerator="cpu"', 'accelerator="cpu", devices=hparams.devices'),
    case(R.SAVE_BY_ALL, "amp_resnet", "        if rank == 0:\n            torch.save",
         "        if epoch % 5 == 0:\n            torch.save"),
    case(R.SAVE_BY_ALL, "uneven_collectives", "        dist.barrier()\n",
         '        torch.save(loss, f"loss.pt")\n', '        torch.save(loss, f"loss-{rank}.pt")\n'),
    case(R.SAVE_BY_ALL, "hydra_config", "        if not self.is_main:\n            return\n", ""),
    case(R.LOAD_WITHOUT_WEIGHTS_ONLY, "amp_resnet", ", weights_only=True", "",
         ", weights_only=False"),
    case(R.NO_CHECKPOINT, "gloo_regression", "  # launcher: ignore[no-checkpoint]", ""),
    case(R.NO_CHECKPOINT, "ppo_distributed", "saved = torch.load(\"agent.pt\", map_location=device,"
         " weights_only=True)\n        agent.load_state_dict(saved[\"agent\"])", "saved = {}"),
    case(R.NAME_BY_EACH_RANK, "hydra_config", "version_base=None, ", "",
         'version_base="1.3", '),
    case(R.NAME_BY_EACH_RANK, "hydra_config", "Runner(cfg)",
         "Runner(HydraConfig.get().runtime.output_dir)", "Runner(cfg.folder)"),
    case(R.NAME_BY_EACH_RANK, "amp_resnet", "        if rank == 0:\n            torch.save",
         '        os.makedirs(time.strftime("%H-%M"))\n        if rank == 0:\n            a.b',
         '        os.makedirs("runs/a")\n        if rank == 0:\n            a.b'),
    case(R.NAME_BY_EACH_RANK, "amp_resnet", "        if rank == 0:\n            torch.save",
         '        torch.save(x, f"{time.time()}-{rank}")\n        if rank == 0:\n            a.b',
         '        if rank == 0:\n            torch.save(step, f"{time.time()}")\n            a.b'),
    case(R.NAME_BY_EACH_RANK, "amp_resnet", "        if rank == 0:\n            torch.save",
         '        SummaryWriter(time.strftime("%H-%M"))\n        if rank == 0:\n            a.b',
         '        SummaryWriter("runs/a")\n        if rank == 0:\n            a.b'),
    case(R.RELATIVE_CHECKPOINT, "slurm_or_torchrun",
         'os.path.join(os.environ.get("CHECKPOINT_DIR", "."), "last.pt")',
         'os.path.join("saved", "last.pt")', 'os.path.join(options.folder, "last.pt")'),
    case(R.LIGHTNING_DROPPED, "lightning_gan", 'accelerator="gpu", devices=8', "gpus=8"),
    case(R.LIGHTNING_DROPPED, "lightning_classifier", 'strategy="ddp"', 'strategy="dp"',
         'strategy="fsdp"'),
    case(R.LIGHTNING_DROPPED, "lightning_classifier", "def on_train_epoch_end(self)",
         "def training_epoch_end(self, outputs)", "def on_validation_epoch_end(self)"),
    case(R.LIGHTNING_DROPPED, "lightning_gan", "import pytorch_lightning as pl\n",
         "import pytorch_lightning as pl\nfrom pytorch_lightning.plugins import DDPPlugin\n"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.id)
def test_a_broken_rule_is_found_and_its_neighbour_is_not(case):
    text = read(f"right/{case.base}")
    assert case.old in text, "the edit must change something"
    assert case.rule.id in rules_of(text.replace(case.old, case.bad, 1))
    good = text.replace(case.old, case.good, 1)
    ast.parse(good)
    assert case.rule.id not in rules_of(good) - rules_of(text)


def test_a_configuration_that_names_hydras_folder_is_read(tmp_path):
    text = read("right/hydra_config").replace("version_base=None, ", "")
    (tmp_path / "conf").mkdir()
    for folder, is_found in (("outputs/${now:%H-%M}", True), ("${oc.env:RUN_DIR}/hydra", False)):
        config = f"lr: 1\nhydra:\n  job:\n    chdir: true\n  run:\n    dir: {folder}\n"
        (tmp_path / "conf/train.yaml").write_text(config)
        (tmp_path / "train.py").write_text(text)
        found = check_training_script(text, str(tmp_path / "train.py"))
        assert (ScriptRule.NAME_BY_EACH_RANK in {one.rule for one in found}) == is_found


@pytest.mark.parametrize("rule", ScriptRule)
def test_every_rule_has_a_reason_a_severity_and_a_script_that_breaks_it(rule):
    assert rule.why
    assert rule.severity in ("error", "warning")
    assert rule in {case.rule for case in CASES}


# -- how often a finding is wrong -----------------------------------------------------------------


def render_figures() -> str:
    """The figures of docs/check-scripts.md, from all scripts of this folder and examples/."""
    rows = ["| scripts | number | findings | wrong | missed |\n|---|---|---|---|---|\n"]
    kinds = {
        "right ones, but for where some save": sorted((SCRIPTS / "right").glob("*.py")),
        "with faults": sorted((SCRIPTS / "faulty").glob("*.py")),
        "`examples/`": sorted((ROOT / "examples").glob("*.py")),
    }
    for kind, files in kinds.items():
        sums = [0, 0, 0]
        for text in (file.read_text() for file in files):
            found, faults = places_of(text), faults_of(text)
            for i, part in enumerate((found, found - faults, faults - found)):
                sums[i] += len(part)
        rows.append(f"| {kind} | {len(files)} | {sums[0]} | {sums[1]} | {sums[2]} |\n")
    return "".join(rows)


def figures() -> dict[str, list[int]]:
    """Number of scripts, findings, wrong and missed ones, by kind."""
    rows = [row.strip("| ").split(" | ") for row in render_figures().splitlines()[2:]]
    return {row[0]: [int(one) for one in row[1:]] for row in rows}


def test_at_most_one_finding_in_ten_is_wrong_and_one_fault_in_ten_is_missed():
    rows = figures().values()
    scripts, found, wrong, missed = (sum(row[i] for row in rows) for i in range(4))
    assert scripts >= 45
    assert wrong * 10 <= found
    assert missed * 10 <= found


def test_nothing_is_found_in_the_examples():
    assert figures()["`examples/`"][1:] == [0, 0, 0]


def test_the_docs_have_the_figures_as_they_are():
    text = DOCS.read_text()
    if os.environ.get("UPDATE_GOLDEN"):
        text = re.sub(r"\| scripts \|.*\n(\|.*\n)*", lambda _: render_figures(), text)
        DOCS.write_text(text)
    assert render_figures() in text


@pytest.mark.parametrize("file", sorted((SCRIPTS / "faulty").glob("*.py")), ids=lambda f: f.stem)
def test_every_fault_that_a_script_says_it_has_is_of_a_rule(file):
    faults = {rule for _, rule in faults_of(file.read_text())}
    assert faults
    assert faults <= {rule.id for rule in ScriptRule}


# -- what a person sees ---------------------------------------------------------------------------


def test_the_whole_output_for_each_script_is_as_before():
    files = [*sorted(SCRIPTS.glob("*/*.py")), *sorted((ROOT / "examples").glob("*.py"))]
    named = [(f"{file.parent.name}/{file.name}", file.read_text()) for file in files]
    assert len(named) >= 45
    rendered = "\n".join(render_checked(check_manifests([one])) for one in named)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(rendered)
    assert rendered == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("comment", "is_found"),
    [
        ("# launcher: ignore[save-by-all]", False),
        ("#launcher:ignore[first-gpu, save-by-all]  as each node has its own disk", False),
        ("# launcher: ignore[first-gpu]", True),
        ("# launcher: ignore", True),
    ],
)
def test_a_comment_silences_the_named_rules_on_its_line(comment, is_found):
    text = read("faulty/single_gpu").replace("# fault: save-by-all", comment)
    assert ("save-by-all" in rules_of(text)) is is_found


def test_a_comment_may_stand_on_any_line_of_a_call():
    text = read("faulty/single_gpu").replace(
        'torch.save(model.state_dict(), "mnist.pt")',
        "torch.save(\n    model.state_dict(),\n    name,  # launcher: ignore[save-by-all]\n)",
    )
    assert "save-by-all" not in rules_of(text)


@pytest.mark.parametrize(
    ("base", "code"), [("right/ddp_trainer", ExitCode.OK), ("faulty/gan_old", ExitCode.BAD_INPUT)]
)
def test_the_command_ends_with_2_for_errors_alone(base, code, capsys):
    assert run_command(["check", str(SCRIPTS / f"{base}.py")]) == code
    assert capsys.readouterr().out.endswith("; 1 training script checked\n")


def test_warnings_alone_are_no_error_and_json_has_all_of_a_finding(tmp_path, capsys):
    script = tmp_path / "my train.py"
    script.write_text(read("right/gloo_regression").replace("# launcher: ignore[no", "# ["))
    assert run_command(["check", "--json", str(script)]) == ExitCode.OK
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["file"] == str(script)
    assert finding["rule"] == "no-checkpoint"
    assert "for step in" in script.read_text().splitlines()[finding["line"] - 1]
    assert {"severity", "what", "why", "fix"} <= set(finding)


@pytest.mark.parametrize(
    ("text", "file", "expected"),
    [
        ("", "train.py", True),
        ("{}", "train.ipynb", True),
        ("#!/usr/bin/env python3\nimport torch", "train", True),
        ("import torch as th\nprint(1)", "<stdin>", True),
        ("from torch import (nn,\n optim)", "<stdin>", True),
        ("#!/usr/bin/env python\n#SBATCH -N 2\nimport os", "job", False),
        ("kind: ConfigMap\ndata:\n  a: |\n    import torch", "<stdin>", False),
        ("#!/bin/bash\npython - <<EOF\nimport os\nEOF", "job.sh", False),
        ("import: torch", "job.yaml", False),
    ],
)
def test_a_training_script_is_known_by_its_suffix_or_its_content(text, file, expected):
    assert is_training_script(text, file) is expected


# -- bad input ------------------------------------------------------------------------------------

BAD: dict[str, tuple[bytes, str]] = {
    "cut-off": (b"import torch\n\nmodel = torch.nn.Linear(\n", ":3: error: not Python 3."),
    "python-2": (b"import torch\n\nprint 'loss', 1\n", ":3: error: Python 2: Missing paren"),
    "python-2-except": (
        b"try:\n    x()\nexcept IOError, e:\n    pass\n",
        ":3: error: Python 2: mul",
    ),
    "notebook": (b'{\n "cells": [], "nbformat": 4}', ":1: error: a notebook, and no script"),
    "5-megabytes": (b"x = 1\n" * 900_000, ":1: error: larger than 1 MiB"),
    "binary": (b"\x7fELF\x02\x01\x01\x00\xff\xfe", ":1: byte 0xff is not UTF-8"),
    "null-bytes": (b"import torch\n\x00\x00", "error: "),
    "empty": (b"", ":1: error: the file is empty"),
    "deep": (b"x = " + b"-" * 20_000 + b"1", "error: "),
    "deep-sum": (b"x = 1" + b"+1" * 200_000, "error: "),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_script_is_one_message_and_code_2(name, tmp_path, capsys):
    content, message = BAD[name]
    script = tmp_path / "train.py"
    script.write_bytes(content)
    assert run_command(["check", str(script)]) == ExitCode.BAD_INPUT
    said = "".join(capsys.readouterr())
    assert said.count("fix:") == 1
    assert message in said
    assert len(glance_at(script)) <= 1


@pytest.mark.parametrize("base", ["ddp_trainer", "imagenet", "lightning_classifier"])
def test_a_script_that_is_cut_off_at_any_line_never_breaks_the_check(base):
    lines = read(f"right/{base}").splitlines(keepends=True)
    for end in range(0, len(lines), 3):
        assert check_training_script("".join(lines[:end]), "train.py") is not None


@pytest.mark.parametrize("text", [
    "a = b = a\nb = a\na.cuda(a)", "def f(x):\n    return f(x)\nf(f)\nif f(1): f(2).barrier()",
    "class A(A): pass", "class A(B): pass\nclass B(A): pass", "x, y = y, x\nx.to(y)",
    "import torch.distributed as d\nwhile d.get_rank() == r:\n    r = d.barrier()",
    "def g():\n    global h\n    return h()\nh = g", "a.b.c = a.b\na.b = a.b.c", "lambda: (yield)",
])  # fmt: skip
def test_names_that_lead_to_themselves_end(text):
    whole = f"{read('right/uneven_collectives')}\n{text}\n"
    assert check_training_script(whole, "train.py") is not None


def test_names_with_many_values_are_end_soon():
    text = "def f(x):\n" + "    x = x.a(x + x + x)\n" * 200 + "    x.cuda(x)\n    x.backward()\n"
    text += "class A(torch.nn.Module):\n    def __init__(self, x):\n"
    text += "        x = x.a(x + x)\n" * 200 + "        self.x = x\n"
    began = time.process_time()
    check_training_script(f"{read('right/imagenet')}\n{text}", "train.py")
    assert time.process_time() - began < 5


# -- what Lightning has --------------------------------------------------------------------------


def defined_in_lightning(path: str) -> dict[str, set[str]]:
    """Functions, with their arguments, of a module of the installed Lightning, which is not run."""
    spec = importlib.util.find_spec("lightning")
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / path).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {f.name: {a.arg for a in (*f.args.args, *f.args.kwonlyargs)} for f in functions}


def test_lightning_has_none_of_the_names_that_are_called_dropped():
    trainer = defined_in_lightning("pytorch/trainer/trainer.py")["__init__"]
    assert {"devices", "strategy", "use_distributed_sampler"} <= trainer
    assert not trainer & lightning.ARGUMENTS.keys()
    hooks = defined_in_lightning("pytorch/core/hooks.py").keys()
    hooks |= defined_in_lightning("pytorch/callbacks/callback.py").keys()
    assert {"on_train_epoch_end", "on_validation_epoch_end"} <= hooks
    assert not hooks & lightning.METHODS.keys()


# -- at the start of a run ------------------------------------------------------------------------


def test_reading_a_long_script_at_the_start_of_a_run_does_not_blow_up(tmp_path):
    """It takes some 50 ms of the processor."""
    script, spent = tmp_path / "train.py", []
    head = read("faulty/evaluate_on_first")
    dense = "x = [" + "[]," * ((MAX_AT_START - 700) // 3) + "]\n"
    long = "def f(rank):\n    if rank == 0: y = dist.get_rank()\n"
    # Each name has many values, and each of those as many.
    names = "        x = self.f(x + x + x)\n" * 60
    many = f"class A(torch.nn.Module):\n    def __init__(self, x):\n{names}        self.x = x\n"
    for more in (dense, long * ((MAX_AT_START - 700) // 20), many, "import torch\n" * 10**5):
        script.write_text(head + more)
        began = time.process_time()
        glance_at(script)
        spent.append(time.process_time() - began)
    assert max(spent) < 5, spent


@pytest.mark.parametrize("kind", ["absent", "folder", "binary"])
def test_a_script_that_cannot_be_read_has_no_findings_at_the_start_of_a_run(kind, tmp_path):
    path = tmp_path / "train.py"
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    assert glance_at(path) == []
