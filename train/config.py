"""The options of the program: default, range, description, and which do not go together. Which may
differ at a resume is in ``resume``.

Imports neither torch nor Lightning, so that ``--help`` and a refused option answer at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings
from jsonargparse.typing import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    restricted_number_type,
)

from fabric_train.checkpointing.retention import KEPT
from fabric_train.errors import InputError
from fabric_train.strategies import check_name

Share = restricted_number_type("Share", float, [(">=", 0), ("<", 1)])
# What numpy accepts; Lightning turns a larger seed into 0 with only a warning.
Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**32)])


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Trains a small network on one device or, under torchrun, on all devices of the job."""

    workload: Literal["digits", "charlm", "transfer"] = "digits"
    """What is trained: `digits` is a small CNN on the 1,797 handwritten digits that come with
    scikit-learn, `charlm` a character-level transformer on sources of Python's own library,
    `transfer` a network for digits 5 to 9 that has first learned 0 to 4; nothing is downloaded."""
    unfreeze_at_step: NonNegativeInt | None = None
    """The optimizer step from which on the pretrained weights of `transfer` are trained too;
    without it they stay as they are."""
    unfreeze_lr: PositiveFloat = 3e-4
    """Highest learning rate of the pretrained weights."""
    model_size: Literal["tiny", "small", "medium", "gpt2-small"] = "tiny"
    """How large the transformer of `charlm` is: `tiny` trains on two cores, `gpt2-small` has 12
    layers of 768 and a context of 1,024 characters."""
    dropout: Share = 0.0  # type: ignore[valid-type]
    """Share of the units that are dropped while training."""
    shift_images: bool = False
    """Move every image of `digits` by up to a pixel, anew in each epoch."""
    epochs: PositiveInt = 10
    """Passes over the training set."""
    max_steps: PositiveInt | None = None
    """Stop after this many optimizer steps, counted over all restarts; the learning rate still
    follows the schedule of all epochs."""
    global_batch_size: PositiveInt = 96
    """Samples of one optimizer step, over all processes together; a multiple of
    `virtual_shards`."""
    virtual_shards: PositiveInt | None = None
    """Equal parts that every global batch is cut into, each computed as a batch of its own with its
    own random numbers. Processes take whole parts, some perhaps one more than others; there cannot
    be more processes than parts. Without it: the checkpoint's number, else 16 for `exact`, else the
    fewest that the job's largest number of processes can share. If the checkpoint has too few, only
    `fast` takes more."""
    accumulate: PositiveInt | None = None
    """Micro-batches of each process in a step, as Lightning's `accumulate_grad_batches`: the global
    batch stays as it is and is cut into so many parts for each process. Another word for
    `virtual_shards`."""
    val_share: Share = 0.0  # type: ignore[valid-type]
    """Share of the training samples, the last ones, that are kept back for `validate` and for
    `patience`."""
    patience: PositiveInt | None = None
    """Stop when the validation loss has not fallen for so many epochs; counts over restarts. Needs
    `val_share`."""
    compile: bool = False
    """Compile the model by torch.compile, on CPUs by g++; each start's first steps are slow."""
    checkpoint_activations: bool = False
    """Keep only the input of each block of `charlm`, and compute the rest again in the backward
    pass: less memory, a third more work, the same numbers."""
    batch_norm: bool = False
    """BatchNorm in `digits`, in place of GroupNorm."""
    sync_batchnorm: bool = False
    """Convert every BatchNorm to SyncBatchNorm, which takes the mean over all processes. torch has
    it for GPUs only."""
    strategy: str = "ddp"
    """How the processes train one model together; docs/strategies.md says which to choose."""
    strategy_options: dict[str, int | float | bool | str] = dataclasses.field(default_factory=dict)
    """Options of the strategy, such as `--strategy_options.every 8`."""
    reduction: Literal["fast", "exact", "scaled"] = "fast"
    """How gradients are added up: `fast` is DDP's all-reduce, whose rounding depends on the number
    of processes; `exact` adds the virtual shards in one order, so that the weights are bit for bit
    the same for any number of processes on one kind of device; with `scaled` the batch grows with
    the world: every process brings `global_batch_size` samples, and the learning rate follows."""
    lr_scaling: Literal["linear", "sqrt"] = "linear"
    """With `reduction: scaled`, how the learning rate grows with the number of processes."""
    scale_warmup_epochs: NonNegativeInt = 5
    """With `reduction: scaled`, epochs over which the learning rate grows to its scaled value."""
    max_grad_norm: PositiveFloat | None = None
    """Largest norm of the whole batch's gradient; a longer gradient is scaled down to it."""
    lr: PositiveFloat = 3e-3
    """Highest learning rate, reached after the warm-up; falls linearly to near zero."""
    warmup_steps: NonNegativeInt = 30
    """Optimizer steps over which the learning rate rises."""
    weight_decay: NonNegativeFloat = 0.05
    """Weight decay of AdamW."""
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true"] = "32-true"
    """Number format of the forward and backward pass; `mixed` leaves the weights in 32 bits.
    `16-mixed` scales the loss, and leaves out a step whose gradient overflows; docs/strategies.md
    says which strategies train in it."""
    sanity_pass: bool = False
    """Before a new training begins: one step, one batch of the validation, one checkpoint. They are
    thrown away, and change nothing in the training."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto` takes CUDA where it is present."""
    seed: Seed = 0  # type: ignore[valid-type]
    """Seed of the weights, the order of the samples and every other random number."""
    num_workers: NonNegativeInt = 0
    """Processes that load data, per training process; 0 loads in the training process."""
    checkpoint_dir: Path | None = None
    """Folder that checkpoints are written to and resumed from. Without it: CHECKPOINT_DIR,
    else `checkpoints` in RUN_DIR, else a new folder under `runs/train` for each start, so that
    only a named folder survives a restart."""
    checkpoint_every_steps: PositiveInt | None = None
    """Write a checkpoint every so many optimizer steps."""
    checkpoint_every_s: PositiveFloat | None = None
    """Write a checkpoint every so many seconds. Without either interval, one is written at each
    epoch's end, and in between as often as loses the least time: every sqrt(2 * cost * mtbf_s)
    seconds, with the measured cost of a checkpoint."""
    mtbf_s: PositiveFloat | None = None
    """Mean time between failures, in seconds, that the interval is chosen for. Without it: the mean
    that the checkpoint folder records, and a day before the first failure."""
    keep_checkpoints: PositiveInt = KEPT
    """How many of the newest checkpoints are kept."""
    keep_best: bool = False
    """Keep the checkpoint of the epoch with the lowest training loss too."""
    keep_every_steps: PositiveInt | None = None
    """Keep the checkpoints after each multiple of so many steps too."""
    checkpoint_async: bool = True
    """Write checkpoints beside the training, which then stands still only to copy its state."""
    storage: str | None = None
    """URL that checkpoints and logs are copied to beside the training (`s3://bucket/folder`, `gs://`,
    `file://`), and resumed from where the folder has no newer one; docs/seeing.md."""
    loggers: str = ""
    """Loggers, with commas between: `csv`, `tensorboard`, `wandb` (offline) and `mlflow` (files).
    They write into `logs` beside the checkpoints; docs/seeing.md."""
    profile: str | None = None
    """Steps that each process traces by torch.profiler, as `steps=10-12`, into `profiles` of
    RUN_DIR, else beside the checkpoints."""
    log_every: PositiveInt = 50
    """Steps from one row of the loggers to the next."""


VERBS = ("fit", "validate", "test", "predict")
"""The first words that ``python -m train`` takes; without one it does ``fit``."""
ENV_PREFIX = "TRAIN_"
FIELDS = tuple(field.name for field in dataclasses.fields(TrainConfig))


def build_parser() -> ArgumentParser:
    """The command line of ``python -m train``, from the fields of TrainConfig."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(
        prog="python -m train",
        usage="python -m train [fit|validate|test|predict] [options]",
        exit_on_error=False,
        allow_abbrev=False,
        default_env=True,
        env_prefix=ENV_PREFIX.strip("_"),
    )
    parser.description = (
        f"{TrainConfig.__doc__} fit trains and tests; validate, test and predict load the newest "
        "checkpoint, and predict writes predictions.csv. Options may also stand in the "
        "environment, as TRAIN_LR=0.1."
    )
    parser.add_argument(
        "--config", action="config", help="YAML file of these options; options given here win."
    )
    parser.add_class_arguments(TrainConfig)
    return parser


def parse_config(arguments: Sequence[str]) -> TrainConfig:
    """The options of one run.

    Reads the file that ``--config`` names. Raises InputError for a wrong option or file; exits
    after ``--help`` and ``--print_config``.
    """
    refuse_unknown_variables(os.environ)
    try:
        given = build_parser().parse_args(list(arguments))
    except ArgumentError as error:
        raise InputError(str(error), suggest_fix(str(error))) from error
    check_name(given["strategy"])
    config = TrainConfig(**{name: given[name] for name in FIELDS})
    if config.profile:
        parse_steps(config.profile)
    if config.patience and not config.val_share:
        raise InputError("--patience watches the validation loss", "--val_share 0.1")
    if config.unfreeze_at_step is not None and config.workload != "transfer":
        raise InputError(
            f"--unfreeze_at_step: workload={config.workload} has no pretrained weights",
            "--workload transfer",
        )
    for option, needs in (("checkpoint_activations", "charlm"), ("batch_norm", "digits")):
        if getattr(config, option) and config.workload != needs:
            raise InputError(
                f"--{option}: not with workload={config.workload}", f"--workload {needs}"
            )
    if config.accumulate and (config.virtual_shards or config.reduction == "exact"):
        raise InputError("--accumulate is another word for --virtual_shards", "give one of them")
    return config


def parse_steps(text: str) -> tuple[int, int]:
    """The first and the last step of ``steps=10-12``. Raises InputError. Pure."""
    first, _, last = text.removeprefix("steps=").partition("-")
    if first.isdigit() and (last or first).isdigit():
        steps = int(first), int(last or first)
        if 1 <= steps[0] <= steps[1]:
            return steps
    raise InputError(f"--profile {text}: not a range of steps", "--profile steps=10-12")


def refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Raises InputError for a TRAIN_ variable that is no option, which the parser would ignore.

    Pure.
    """
    known = {ENV_PREFIX + name.upper() for name in (*FIELDS, "config")}
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            raise InputError(
                f"{name}={environ[name]} in the environment is no option",
                (f"did you mean {near[0]}? " if near else "") + f"unset {name}",
            )


def suggest_fix(message: str) -> str:
    """The option that was probably meant, else how to list all options."""
    if "not accepted" in message or "nrecognized" in message:
        for word in re.findall(r"[a-z_]+", message.replace("-", "_")):
            near = difflib.get_close_matches(word.strip("_"), FIELDS, n=1, cutoff=0.75)
            if near:
                return f"did you mean {near[0]}?"
    return "python -m train --help lists the options"
