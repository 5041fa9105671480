"""Finds the mistakes of manifests and scripts: which check each kind gets, what is refused, and how
breaches are shown. Pure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.job.file import parse_job
from launcher.job.spec import JobSpec
from launcher.manifests.checks.pods import check_pod
from launcher.manifests.checks.pytorchjob import check_pytorchjob
from launcher.manifests.checks.rules import ERROR, Breach, Breaches, Rule
from launcher.manifests.imports.batch import is_batch_script
from launcher.manifests.scripts.check import check_training_script, is_training_script
from launcher.manifests.source import Value, object_name, parse_manifest
from launcher.yamlfile.problem import FileError

MAX_FILE_BYTES = 64 * 2**20
"""The limit for one file: manifests for a whole cluster are larger than any job file."""

STDIN_NAME = "<stdin>"
"""The file name that stands for the standard input."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of a check: the breaches by file and line, and how much was looked at.

    ``known`` counts the objects that have rules, ``others`` those without, ``scripts`` the training
    scripts.
    """

    breaches: tuple[Breach, ...]
    known: int
    others: int
    scripts: int = 0

    @property
    def is_good(self) -> bool:
        """Whether nothing but warnings was found."""
        return not any(breach.rule.severity == ERROR for breach in self.breaches)


def _check_workload(item: Value) -> Breaches:
    """A Pod, or an object with a template for pods that do not train together."""
    spec = item["spec"]
    return check_pod(spec["template"]["spec"] if spec["template"] else spec, training=False)


CHECKS: Mapping[str, Callable[[Value], Breaches]] = {
    "PyTorchJob": check_pytorchjob,
    "Pod": _check_workload,
    "Job": _check_workload,
    "Deployment": _check_workload,
    "StatefulSet": _check_workload,
}
"""The check of each kind; objects of other kinds have none."""


def check_manifests(texts: Iterable[tuple[str, str]]) -> Checked:
    """Checks files, given as name and text.

    A file may be a training script, which is checked by itself. Raises ``InputError`` for a job
    file and a batch script, which other commands read.
    """
    objects: list[Value] = []
    breaches: list[Breach] = []
    files = []
    scripts = 0
    for file, text in texts:
        files.append(file)
        if is_training_script(text, file):
            scripts += 1
            breaches += check_training_script(text, file)
            continue
        if is_batch_script(text, file):
            what = f"{file}: a batch script; training scripts and manifests are checked"
            raise InputError(what, typed.command("import", file))
        try:
            objects += (inside := parse_manifest(text, file))
        except FileError as error:
            breaches += [Breach(rule=Rule.YAML, **vars(problem)) for problem in error.problems]
        else:
            _refuse_job(inside, text, file)
    known = [item for item in objects if item["kind"].text in CHECKS]
    for item in known:
        kind = item["kind"].text
        name = f"{kind}/{object_name(item)}"
        breaches += [replace(breach, object=name) for breach in CHECKS[kind](item)]
    places = {file: i for i, file in reversed(list(enumerate(files)))}
    ordered = sorted(dict.fromkeys(breaches), key=lambda breach: (places[breach.file], breach.line))
    return Checked(
        breaches=tuple(ordered),
        known=len(known),
        others=len(objects) - len(known),
        scripts=scripts,
    )


def read_job(text: str, file: str) -> JobSpec | None:
    """The job of a job file; None for any other text, and where it is wrong."""
    if "command" in text and not ("apiVersion" in text or file.endswith(".py")):
        with contextlib.suppress(FileError):
            return parse_job(text, file)
    return None


def _refuse_job(objects: Iterable[Value], text: str, file: str) -> None:
    """Raises ``FileError`` for what ``run`` would refuse of a job file; else ``InputError``."""
    for item in objects:
        if not (item["apiVersion"] or item["kind"]) and (item["command"] or item["name"]):
            job = file if file != STDIN_NAME else "JOB"
            parse_job(text, file)
            what = f"{item.where}: a job file, and no file here is its script"
            raise InputError(
                what, f"{typed.command('doctor', job)}, or {typed.command('render', job)}"
            )


def render_checked(checked: Checked) -> str:
    """Each breach with its why and its fix on lines of their own, and the counts at the end."""
    blocks = [
        f"{breach.file}:{breach.line}: {breach.rule.severity}: {breach.what} [{breach.rule.id}]\n"
        f"  why: {breach.rule.why}\n  fix: {breach.fix}\n"
        for breach in checked.breaches
    ]
    errors = sum(breach.rule.severity == ERROR for breach in checked.breaches)
    counts = f"{_count(errors, 'error')}, {_count(len(blocks) - errors, 'warning')}"
    looked_at = []
    if checked.known or checked.others or not checked.scripts:
        looked_at.append(
            f"{_count(checked.known, 'object')} checked, {checked.others} without rules"
        )
    if checked.scripts:
        looked_at.append(f"{_count(checked.scripts, 'training script')} checked")
    return "".join(blocks) + f"{counts}; {', '.join(looked_at)}\n"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
