"""Writes the manifests of k8s/ that are made from jobs/digits-kubernetes.yaml: ``make k8s``.

``python k8s/generate.py [IMAGE]``; a test fails where the files are not what this writes.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOB = "jobs/digits-kubernetes.yaml"
IMAGE = "registry.example/me/fabric-train:1"
FILES: dict[str, tuple[str, ...]] = {
    # k8s/job.yaml leads there: kustomize reads nothing outside of its base, nor a base above it.
    "base/job.yaml": (),
    "job-static.yaml": ("--nnodes=2", "--set=name=digits-static", "--set=rdzv.backend=static"),
    "trainjob.yaml": ("--kind=trainjob", "--nnodes=2", "--set=name=digits-trainjob"),
    "jobset.yaml": ("--kind=jobset", "--nnodes=2", "--set=name=digits-jobset"),
    "job-no-operator.yaml": ("--kind=job", "--set=name=digits-job"),
}
"""Each file with the options of ``launcher render`` that make it. Names differ, so that all of
them may be applied to one namespace."""


def command_of(file: str, image: str = IMAGE) -> tuple[str, ...]:
    """The words after ``launcher``."""
    return ("render", JOB, "--on=kubernetes", f"--image={image}", *FILES[file])


def render(file: str, image: str = IMAGE) -> str:
    """The text of one file, as its command prints it."""
    from launcher.job.file import option_override, parse_override, read_job
    from launcher.targets.kubernetes.plan import plan_kubernetes
    from launcher.targets.kubernetes.render.manifest import render_manifest

    overrides = [option_override("--image", image)]
    for option in FILES[file]:
        name, _, value = option.partition("=")
        if name == "--kind":
            value, name = f"kubernetes.kind={value}", "--set"
        overrides.append(parse_override(value) if name == "--set" else option_override(name, value))
    job = read_job(ROOT / JOB, overrides)
    plan = plan_kubernetes(job, run_id=job.name, run_root="runs", cwd=".")
    made_by = shlex.join(("launcher", *command_of(file, image)))
    named = f"k8s/{file.removeprefix('base/')}"
    return render_manifest(plan, made_by=made_by, file=named).yaml()


def main() -> None:
    sys.path.insert(0, str(ROOT))  # so that it works in a checkout that is not installed
    image = sys.argv[1] if len(sys.argv) > 1 else IMAGE
    for file in FILES:
        (ROOT / "k8s" / file).write_text(render(file, image), encoding="utf-8")


if __name__ == "__main__":
    main()
