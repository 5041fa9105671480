"""A script's job file, with comments, from its arguments and imports. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator, Sequence
from textwrap import wrap

from launcher.job.script import name_of
from launcher.manifests.scripts.check import parse_script
from launcher.manifests.scripts.data import saves_and_loads
from launcher.manifests.scripts.ranks import TrainingScript
from launcher.manifests.scripts.reading import argument, constant

SECRETS = {
    "wandb": "WANDB_API_KEY",
    "comet_ml": "COMET_API_KEY",
    "neptune": "NEPTUNE_API_TOKEN",
    "huggingface_hub": "HF_TOKEN",
    "datasets": "HF_TOKEN",
}
"""The variable that a library logs in with."""
REQUIREMENTS = ("requirements.txt", "pyproject.toml")


def render_job(command: Sequence[str], text: str, beside: Collection[str]) -> str:
    """The job file of a script; ``command`` is the script with its arguments.

    ``beside`` are the names of the files in its folder. Raises ``FileError`` where it does not
    parse.
    """
    script = parse_script(text, command[0])
    return "".join(f"{line}\n" for line in _lines(list(command), script, beside))


def _lines(command: list[str], script: TrainingScript, beside: Collection[str]) -> Iterator[str]:
    packages = {name.partition(".")[0] for name in script.imports.values()}
    yield "# Every key, with what it accepts: launcher docs job-file"
    yield ""
    yield f"name: {name_of(tuple(command))}"
    if options := list(_options(script)):
        also = f"{command[0]} also takes {', '.join(options)}"
        yield from (f"# {line}" for line in wrap(also, width=98, break_on_hyphens=False))
    yield f"command: {json.dumps(command, ensure_ascii=False)}"
    yield ""
    if not script.is_distributed:
        yield "# No torch.distributed and no Trainer was found: more processes than one would each"
        yield "# train a model of their own."
        yield "nproc_per_node: 1"
    else:
        yield "# One process for each GPU, without GPUs one for each core."
        yield "nproc_per_node: auto"
    yield '# "1:4" is elastic: it starts with up to four nodes, and goes on while one is left.'
    yield "nnodes: 1"
    yield from _restarts(script)
    secrets = sorted({SECRETS[package] for package in packages & {*SECRETS}})
    if secrets:
        yield ""
        yield "# Taken from your environment, and never written down."
        yield f"secrets: [{', '.join(secrets)}]"
    yield ""
    yield "# In containers:"
    if file := next((name for name in REQUIREMENTS if name in beside), None):
        yield f"#   launcher build {command[0]} --base IMAGE-WITH-TORCH --tag NAME:1   ({file})"
    yield "# image: NAME:1"
    if any(constant(argument(call, "num_workers")) for call in script.calls("DataLoader")):
        yield "# The workers of a DataLoader hand their batches over in /dev/shm."
        yield "# resources: {shm: 8Gi}"


def _options(script: TrainingScript) -> Iterator[str]:
    """What ``argparse`` adds, with the defaults that are written out."""
    for call in script.calls("add_argument"):
        names = [str(constant(arg)) for arg in call.args]
        shown = next((name for name in names if name.startswith("--")), None)
        default = argument(call, "default")
        if shown and isinstance(default, ast.Constant) and default.value is not None:
            yield f"{shown}={default.value!s}"
        elif shown:
            yield shown


def _restarts(script: TrainingScript) -> Iterator[str]:
    yield ""
    if all(saves_and_loads(script)):
        yield "# How often failed workers start again. CHECKPOINT_DIR in their environment is a"
        yield "# folder that outlives the run."
        yield "max_restarts: 3"
    else:
        yield "# A restart begins at the first step: no checkpoint is read here."
        yield "# (launcher docs checkpoints, launcher docs trainers)"
        yield "max_restarts: 0"
