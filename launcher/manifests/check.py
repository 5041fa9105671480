"""``launcher check``: mistakes of Kubernetes manifests, before they cost GPU hours. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from launcher.manifests.checks.gangs import check_job, check_jobset
from launcher.manifests.checks.pods import check_pod
from launcher.manifests.checks.pytorchjob import check_pytorchjob
from launcher.manifests.checks.rules import WHY, Hit, Rule, Severity, hit, severity_of
from launcher.manifests.checks.trainjob import check_runtime, check_trainjob
from launcher.manifests.source import Together, Value, object_name, parse_manifest
from launcher.yamlfile.problem import FileError

ANNOTATION_BYTES = 256 * 1024
"""What ``kubectl apply`` may copy into an object's annotations."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A breach of one rule: where, what was found, why it hurts, what to write instead.

    ``rule`` is a name of ``Rule``, or ``yaml`` where the file itself cannot be read; ``line`` is
    1-based; ``severity`` is ``error`` or ``warning``.
    """

    file: str
    line: int
    rule: str
    severity: str
    object: str
    path: str
    what: str
    why: str
    fix: str

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What came of a check: the ``findings``, by file and line, and how many objects have rules."""

    findings: tuple[Finding, ...]
    known: int
    others: int

    @property
    def is_good(self) -> bool:
        """Whether nothing but warnings was found."""
        return all(finding.severity != Severity.ERROR.value for finding in self.findings)


def _check_pod_object(item: Value, together: Together) -> Iterator[Hit]:
    yield from check_pod(item["spec"], training=False)


def _check_workload(item: Value, together: Together) -> Iterator[Hit]:
    yield from check_pod(item["spec"]["template"]["spec"], training=False)


def _check_crd(item: Value, together: Together) -> Iterator[Hit]:
    size = len(str(item.data))
    if size > ANNOTATION_BYTES:
        what = f"a definition of about {size // 1024} KiB"
        yield hit(Rule.LARGE_CRD, item["kind"], what, "kubectl apply --server-side")


Check = Callable[[Value, Together], Iterator[Hit]]
CHECKS: Mapping[str, Check] = {
    "PyTorchJob": check_pytorchjob,
    "TrainJob": check_trainjob,
    "TrainingRuntime": check_runtime,
    "ClusterTrainingRuntime": check_runtime,
    "JobSet": check_jobset,
    "Job": check_job,
    "Pod": _check_pod_object,
    "Deployment": _check_workload,
    "StatefulSet": _check_workload,
    "CustomResourceDefinition": _check_crd,
}
"""By kind; objects of other kinds are passed over, and matter only to those that need them."""


def check_manifests(texts: Iterable[tuple[str, str]]) -> Checked:
    """Checks files, given as name and text, as what is applied together, in that order."""
    objects: list[Value] = []
    findings: list[Finding] = []
    for file, text in texts:
        try:
            objects += parse_manifest(text, file)
        except FileError as error:
            findings += _unreadable(file, error)
    together = Together(objects=tuple(objects))
    known = [item for item in objects if item["kind"].text in CHECKS]
    for item in known:
        findings += [_finding(item, h) for h in CHECKS[item["kind"].text](item, together)]
    order = {file: i for i, file in enumerate(dict.fromkeys(f.file for f in findings))}
    ordered = sorted(dict.fromkeys(findings), key=lambda f: (order[f.file], f.line))
    return Checked(findings=tuple(ordered), known=len(known), others=len(objects) - len(known))


def _finding(item: Value, found: Hit) -> Finding:
    file, line = _place(found.at.where)
    return Finding(
        file=file,
        line=line,
        rule=found.rule.value,
        severity=severity_of(found.rule).value,
        object=f"{item['kind'].text}/{object_name(item)}",
        path=found.at.name,
        what=found.what,
        why=WHY[found.rule],
        fix=found.fix,
    )


def _unreadable(file: str, error: FileError) -> Iterator[Finding]:
    for problem in error.problems:
        name, line = _place(problem.where)
        yield Finding(
            file=name,
            line=line,
            rule="yaml",
            severity=Severity.ERROR.value,
            object="",
            path="",
            what=problem.what,
            why="an API server cannot read it, or reads something else than was meant",
            fix=problem.fix,
        )


def _place(where: str) -> tuple[str, int]:
    file, _, line = where.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (where, 1)


def render_findings(checked: Checked) -> str:
    """For each finding what, why and the fix on lines of their own; the count at the end."""
    blocks = [
        f"{f.file}:{f.line}: {f.severity}: {f.what} [{f.rule}]\n  why: {f.why}\n  fix: {f.fix}\n"
        for f in checked.findings
    ]
    errors = sum(f.severity == Severity.ERROR.value for f in checked.findings)
    warnings = len(checked.findings) - errors
    counts = f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"
    objects = f"{_count(checked.known, 'object')} checked, {checked.others} without rules"
    return "".join(blocks) + f"{counts}; {objects}\n"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
