"""``launcher import``: finds out what a text is, and reads hostfiles and accelerate configs itself.
Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.manifests.imports.batch import import_batch_script, is_batch_script
from launcher.manifests.imports.command_line import LineReader, launches, split_line
from launcher.manifests.imports.draft import Draft
from launcher.manifests.imports.kubernetes import KINDS, import_object
from launcher.manifests.imports.programs import PROGRAMS
from launcher.manifests.source import Value, parse_manifest

HOST_LINE = re.compile(r"[A-Za-z0-9][\w.-]*(?:\s+(?:slots|max_slots)=\d+|:\d+)*")
PLUGINS = {"fsdp_config": "FSDP_", "deepspeed_config": "ACCELERATE_DEEPSPEED_"}
TAKES = "a launch line, a batch script, a PyTorchJob or TrainJob, an accelerate config, a hostfile"


def import_text(text: str, source: str, command: Sequence[str] = ()) -> Draft:
    """The job of a text; ``command`` is the script if the text names none.

    ``source`` is the text's name in messages. Raises ``InputError`` for a text that is none of
    ``TAKES``, or that ends before it says what to run.
    """
    draft = Draft(source=source)
    lines = [line for line in text.splitlines() if line.partition("#")[0].strip()]
    is_yaml = bool(lines) and re.match(r"[\w-]+:(\s|$)", lines[0])
    if is_batch_script(text, source):
        import_batch_script(text, draft)
    elif lines and all(HOST_LINE.fullmatch(line.partition("#")[0].strip()) for line in lines):
        _hostfile(lines, source, draft)
    elif launches(text.replace("\\\n", " ").split()) and not is_yaml:
        LineReader(draft, {}).read_all(split_line(text.strip()))
    else:
        _yaml(text, source, draft)
    if command:
        LineReader(draft, {}).read_command(list(command))
    return draft


def _hostfile(lines: Sequence[str], source: str, draft: Draft) -> None:
    """A hostfile of Open MPI, DeepSpeed or Horovod: a host in each line, with its slots."""
    slots = {match[1] for line in lines if (match := re.search(r"(?:slots=|:)(\d+)", line))}
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
                f"kubectl get {kind.lower()} NAME -o yaml prints it as the cluster has it",
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
    """What ``accelerate config`` wrote: the options of ``accelerate launch`` as keys.

    The options of plugins are passed on as variables (``accelerate.utils.launch``).
    """
    reader, special = LineReader(draft, {}), defaultdict[str, list[str]](list)
    program = PROGRAMS["accelerate"]
    for name, value in config.items():
        for part, inner in value.items():
            short = part.removeprefix(name.removesuffix("config")).upper()
            if (option := part.replace("_", "-")) in program.keys:
                reader.convert(program, option, inner.text, "", special)
            elif name in PLUGINS:
                draft.set_env(PLUGINS[name] + short, inner.text)
            else:
                draft.leave(f"{name}.{part}: {inner.text}", "set it in the script")
        if value.text in ("FSDP", "DEEPSPEED"):
            draft.set_env(f"ACCELERATE_USE_{value.text}", "true")
        elif value.text not in ("no", "NO", "false", ""):
            shown = f"{name}: {value.text}"
            reader.convert(program, name.replace("_", "-"), value.text, shown, special)
    reader.spread(special)


def _refuse(source: str) -> None:
    raise InputError(
        f"{source}: none of {TAKES}",
        f"{typed.command('import', '--help')}; of a script: {typed.command('import', 'train.py')}",
    )
