"""Becomes one node of a run whose nodes somebody else starts: srun, mpirun, a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from launcher.api.choose_target import started_node
from launcher.api.starting.planning import plan_job, text_of
from launcher.job.spec import JobSpec


def become_node(
    job: JobSpec,
    run_root: Path,
    environ: Mapping[str, str],
    note: Callable[[str], None],
    *,
    run_id: str | None = None,
    extra_args: tuple[str, ...] = (),
) -> NoReturn:
    """Joins the run, which its first node creates, and becomes the node's agent.

    ``note`` takes lines about the node. Raises ``InputError`` and ``TargetError``.
    """
    node = started_node(job, run_root, environ, run_id)
    if node.place.index == 0:
        with node.planning():
            planned = plan_job(
                job,
                run_root,
                opened=node.target,
                extra_args=extra_args,
                detached=True,
                run_id=node.run_id,
            )
            # The job as it was given: another start may have another number of nodes.
            ran = job.model_copy(update={"command": (*job.command, *extra_args)})
            node.put(planned.plan, replace(planned, job=ran).create, text_of(ran))
    plan = node.wait_for_plan()
    for line in node.tell(plan):
        note(line)
    node.become(plan)
