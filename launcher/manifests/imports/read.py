"""``launcher import``: what a text is, and the job file that it makes. Pure."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence

from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.manifests.batch.script import is_batch_script, parse_batch_script
from launcher.manifests.imports.batch import import_batch_script
from launcher.manifests.imports.command_line import LineReader, launches, split_line
from launcher.manifests.imports.draft import Draft
from launcher.manifests.imports.kubernetes import KINDS, import_object
from launcher.manifests.imports.programs import PROGRAMS
from launcher.manifests.source import Value, parse_manifest

HOST_LINE = re.compile(r"[A-Za-z0-9][\w.-]*(?:\s+(?:slots|max_slots)=\d+|:\d+)*")
TAKES = "a launch line, a batch script, a PyTorchJob or TrainJob, an accelerate config, a hostfile"


def import_text(text: str, source: str, command: Sequence[str] = ()) -> Draft:
    """The job of a text; ``command`` is the script where the text names none.

    ``source`` stands in messages for it. Raises ``InputError`` for what is none of ``TAKES``, or
    ends before it says what to run.
    """
    draft = Draft(source=source)
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    is_yaml = bool(lines) and re.match(r"[\w-]+:(\s|$)", lines[0])
    if is_batch_script(text, source):
        import_batch_script(parse_batch_script(text, source), draft)
    elif lines and all(HOST_LINE.fullmatch(line.partition("#")[0].strip()) for line in lines):
        _hostfile(lines, source, draft)
    elif launches(text.replace("\\\n", " ").split()) and not is_yaml:
        LineReader(draft, {}).read_all(split_line(text.strip()))
    else:
        _yaml(text, source, draft)
    if command:
        LineReader(draft, {}).read(list(command))
    return draft


def import_line(words: Sequence[str]) -> Draft:
    """The job of a launch line that a shell has split."""
    line = shlex.join(words)
    draft = Draft(source=line if len(line) <= 80 else f"{line[:77]}...")
    if not launches(words):
        _refuse(draft.source)
    LineReader(draft, {}).read_all(words)
    return draft


def _hostfile(lines: Sequence[str], source: str, draft: Draft) -> None:
    """A hostfile of Open MPI, DeepSpeed or Horovod: a host in each line, with its slots."""
    slots = {found[1] for line in lines if (found := re.search(r"(?:slots=|:)(\d+)", line))}
    draft.put("nnodes", len(lines))
    if len(slots) == 1:
        draft.put("nproc_per_node", int(slots.pop()))
    elif slots:
        draft.leave(f"slots of {', '.join(sorted(slots))}", "every node has nproc_per_node workers")
    draft.put("hosts.inventory", source)


def _yaml(text: str, source: str, draft: Draft) -> None:
    objects = parse_manifest(text, source)
    jobs = [item for item in objects if item["kind"].text in KINDS]
    if jobs:
        version, kind = jobs[0]["apiVersion"].text, jobs[0]["kind"].text
        if version != KINDS[kind]:
            raise InputError(
                f"{jobs[0].where}: a {kind} of {version or 'no apiVersion'}; read: {KINDS[kind]}",
                f"kubectl get {kind.lower()} NAME -o yaml tells it as the cluster has it",
            )
        import_object(jobs[0], draft)
        for item in objects:
            if item is not jobs[0]:
                draft.leave(
                    f"{item['kind'].text} at {item.where}", "not of the job; kubectl applies it"
                )
    elif objects and (objects[0]["num_processes"] or objects[0]["distributed_type"]):
        _accelerate(objects[0], draft)
    else:
        _refuse(source)


def _accelerate(config: Value, draft: Draft) -> None:
    """What ``accelerate config`` wrote: the options of ``accelerate launch`` as keys."""
    reader, special = LineReader(draft, {}), defaultdict[str, list[str]](list)
    for name, value in config.items():
        option = name.replace("_", "-")
        if name in ("fsdp_config", "deepspeed_config", "fp8_config", "megatron_lm_config"):
            for part, inner in value.items():
                _of_plugin(name, part, inner, reader)
        elif name == "distributed_type":
            draft.set_env("ACCELERATE_USE_FSDP", "true") if value.text == "FSDP" else None
            draft.set_env("ACCELERATE_USE_DEEPSPEED", "true") if value.text == "DEEPSPEED" else None
        elif value and value.text not in ("no", "NO", "false", ""):
            reader.take(
                PROGRAMS["accelerate"], option, value.text, f"{name}: {value.text}", special
            )
    reader.spread(special)


def _of_plugin(section: str, name: str, value: Value, reader: LineReader) -> None:
    """accelerate hands these on as variables: FSDP_* by their own names, DeepSpeed's with another
    beginning (``accelerate.utils.launch.prepare_multi_gpu_env`` and ``prepare_deepspeed_cmd_env``).
    """
    if section == "fsdp_config":
        name = name if name.startswith("fsdp_") else f"fsdp_{name}"
        reader.draft.set_env(name.upper(), value.text)
    elif section == "deepspeed_config":
        known = {"deepspeed_config_file": "CONFIG_FILE", "gradient_clipping": "GRADIENT_CLIPPING",
                 "gradient_accumulation_steps": ""}  # fmt: skip
        short = known.get(name, name.upper())
        prefix = "ACCELERATE_DEEPSPEED_" if short else "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
        reader.draft.set_env(prefix + short, value.text)
    else:
        reader.draft.leave(f"{section}.{name}: {value.text}", "set it in the script")


def _refuse(source: str) -> None:
    raise InputError(
        f"{source}: none of {TAKES}",
        f"{typed.command('import', '--help')}; of a script: {typed.command('init', 'train.py')}",
    )
