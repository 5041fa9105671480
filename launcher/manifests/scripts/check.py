"""All rules of training scripts, applied to one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path, PurePath

from launcher.manifests.checks.rules import Breach, Breaches
from launcher.manifests.scripts import checkpoints, data, devices, lightning, processes
from launcher.manifests.scripts.reading import Script, parse_script
from launcher.manifests.scripts.rules import ScriptRule

MAX_BYTES = 2**20
"""Larger is no script that a person wrote."""
MAX_AT_START = 6000
"""Words and signs of a script that is read at the start of a run: 25 ms of processor time."""
NOTEBOOK = re.compile(r'\A\s*\{.*"(cells|nbformat)"\s*:', re.DOTALL)
PYTHON_2 = re.compile(
    r"Missing parentheses in call to|multiple exception types must be|invalid hex"
)
PYTHON = re.compile(
    r"\A#!.*\bpython|^(import|from) \w[\w.]*( import .+| as \w+)?\s*$", re.MULTILINE
)

CHECKS: tuple[Callable[[Script], Breaches], ...] = (
    devices.check_first_gpu,
    devices.check_rank_as_device,
    devices.check_visible_devices,
    devices.check_data_parallel,
    devices.check_nccl_without_device,
    devices.check_tensor_not_buffer,
    data.check_no_set_epoch,
    data.check_loader_without_sampler,
    data.check_sampler_with_shuffle,
    data.check_worker_seeds,
    data.check_download,
    data.check_pickled_function,
    processes.check_address_set,
    processes.check_own_world,
    processes.check_world_size_of_node,
    processes.check_some_ranks_only,
    processes.check_group_destroyed_early,
    processes.check_fabric_cpu,
    checkpoints.check_save_by_all,
    checkpoints.check_load_without_weights_only,
    checkpoints.check_no_checkpoint,
    lightning.check_arguments,
    lightning.check_methods,
    lightning.check_names,
)


def is_training_script(text: str, file: str) -> bool:
    """By its suffix, or by its content where the suffix tells nothing."""
    suffix = PurePath(file).suffix.lower()
    if suffix in (".py", ".pyw", ".ipynb"):
        return True
    return suffix in ("", ".txt") and "#SBATCH" not in text and bool(PYTHON.search(text))


def check_training_script(text: str, file: str) -> list[Breach]:
    """The breaches of one training script, in the order of its lines."""
    what, fix, line = "", "", 1
    if NOTEBOOK.match(text[:MAX_BYTES]):
        what, fix = "a notebook, and no script", f"jupyter nbconvert --to script {file}"
    elif len(text) > MAX_BYTES:
        what, fix = f"larger than {MAX_BYTES // 2**20} MiB", "name the script that is started"
    elif not text.strip():
        what, fix = "the file is empty", "name the script that is started"
    if not what:
        try:
            script = parse_script(text, file)
            found = [breach for check in CHECKS for breach in check(script)]
            return sorted(dict.fromkeys(found), key=lambda one: one.line)
        except SyntaxError as error:
            what, fix, line = _tell(error), _fix(error), error.lineno or 1
        except ValueError as error:
            what, fix = f"not Python: {error}", "name the script that is started"
        except (RecursionError, MemoryError):
            what, fix = "nested too deeply to be read", "split the longest expression"
    where = f"{file}:{line}"
    return [Breach(rule=ScriptRule.UNREADABLE, where=where, line=line, what=what, fix=fix)]


def _is_python_2(error: SyntaxError) -> bool:
    return bool(PYTHON_2.search(error.msg))


def _tell(error: SyntaxError) -> str:
    if _is_python_2(error):
        return f"Python 2: {error.msg}"
    return f"not Python {sys.version_info.major}.{sys.version_info.minor}: {error.msg}"


def _fix(error: SyntaxError) -> str:
    if _is_python_2(error):
        return "port it to Python 3"
    return "mend the line; a script for a newer Python is checked with that one"


def count_findings(path: Path) -> int:
    """How many findings a script has; 0 where reading it would cost more than a glance.

    Never raises: a run does not depend on it.
    """
    try:
        text = path.read_text() if path.stat().st_size < MAX_BYTES else ""
        if not 0 < len(re.findall(r"\w+|[^\w\s]", text)) <= MAX_AT_START:
            return 0
        return len(check_training_script(text, str(path)))
    except Exception:  # whatever it is, the run has to start
        return 0
