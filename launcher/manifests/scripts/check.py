"""Applies all rules of training scripts to one: what counts as a script, which are too large, and
the quick look at a run's start.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path, PurePath

from launcher.manifests.checks.rules import Breach, Breaches
from launcher.manifests.scripts import data, devices, lightning, processes
from launcher.manifests.scripts.ranks import TrainingScript
from launcher.manifests.scripts.reading import MAX_STEPS
from launcher.manifests.scripts.rules import ScriptRule
from launcher.yamlfile.problem import FileError, Origin

MAX_BYTES = 2**20
"""A larger file is not a script that a person wrote."""
MAX_AT_START = 6000
"""Limit of words and signs for a script read at a run's start, which may take 50 ms at most."""
STEPS_AT_START = 3000
"""Limit of steps in following names then; 900 lines over a few helpers need 1,000."""
NOTEBOOK = re.compile(r'\s*\{.*"(cells|nbformat)"\s*:', re.DOTALL)
PYTHON_2 = ("Missing parentheses in call to", "multiple exception types must be")
PYTHON = re.compile(
    r"\A#!.*\bpython|^(import [\w.]+( as \w+)?|from [\w.]+ import [\w, (]+)\s*$", re.MULTILINE
)

FAMILIES = (devices, data, processes, lightning)
CHECKS: tuple[Callable[[TrainingScript], Breaches], ...] = tuple(
    check
    for family in FAMILIES
    for name, check in vars(family).items()
    if name.startswith("check_")
)
"""The functions of the families that are called ``check_``, in the order of the files."""
OF_ALL = (
    devices.check_tensor_not_buffer,
    processes.check_own_world,
    processes.check_fabric_cpu,
    lightning.check_lightning,
)
"""The checks for every file, even a module that does not train by itself."""


def is_training_script(text: str, file: str) -> bool:
    """Whether a file is one by its suffix, or by its content if it has no suffix."""
    suffix = PurePath(file).suffix.lower()
    is_open = suffix == "" and "#SBATCH" not in text
    return suffix in (".py", ".ipynb") or (is_open and bool(PYTHON.search(text)))


def parse_script(text: str, file: str, steps: int = MAX_STEPS) -> TrainingScript:
    """The tree of a script. Raises ``FileError`` where Python could not run it."""
    line, fix = 1, "name the script that is started"
    if NOTEBOOK.match(text[:MAX_BYTES]):
        what, fix = "a notebook, and no script", f"jupyter nbconvert --to script {file}"
    elif len(text) > MAX_BYTES:
        what = f"larger than {MAX_BYTES // 2**20} MiB"
    elif not text.strip():
        what = "the file is empty"
    else:
        try:
            return TrainingScript(text, file, steps)
        except SyntaxError as error:
            is_old = error.msg.startswith(PYTHON_2)
            version = "Python 2" if is_old else "not Python {}.{}".format(*sys.version_info)
            what, line = f"{version}: {error.msg}", error.lineno or 1
            fix = "port it to Python 3" if is_old else "mend the line, or check it with its Python"
        except (ValueError, RecursionError, MemoryError) as error:
            what = f"cannot be read: {error}"
    raise Origin(file).error(what, fix, line)


def check_training_script(text: str, file: str, steps: int = MAX_STEPS) -> list[Breach]:
    """The breaches of one training script, in the order of its lines."""
    try:
        script = parse_script(text, file, steps)
        checks = CHECKS if script.trains or script.is_distributed else OF_ALL
        breaches = dict.fromkeys(breach for check in checks for breach in check(script))
        return sorted(breaches, key=lambda breach: breach.line)
    except FileError as unreadable:
        problems = unreadable.problems
    except RecursionError as error:
        problems = Origin(file).error(f"cannot be read: {error}", "fewer brackets", 1).problems
    return [Breach(rule=ScriptRule.UNREADABLE, **vars(problem)) for problem in problems]


def glance_at(path: Path) -> list[Breach]:
    """The breaches of a script; none where reading it would cost more than a glance.

    Never raises: a run does not depend on it.
    """
    try:
        text = path.read_text("utf-8-sig") if path.stat().st_size < MAX_BYTES else ""
        if not 0 < len(re.findall(r"\w+|[^\w\s]", text)) <= MAX_AT_START:
            return []
        return check_training_script(text, str(path), STEPS_AT_START)
    except Exception:  # whatever it is, the run has to start
        return []
