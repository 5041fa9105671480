"""What is found out before a job is made: whether its name is free, and its pods are admitted."""

from __future__ import annotations

from pathlib import Path

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.api import ApiError, Cluster, Object
from launcher.targets.kubernetes.render_pod import render_trial_pod

FORBIDDEN, INVALID = 403, 422
MAY_PASS = ("exceeded quota", "status unknown for quota")
"""Refusals that end when other pods do, or when a new quota has been counted."""


def try_pod(cluster: Cluster, plan: LaunchPlan) -> list[str]:
    """Has the server admit one pod of the job and forget it.

    Returns notes where no pod is made now but may be later. Raises ``ApiError`` where none can
    ever be: by Pod Security, by limits of the namespace, for lack of a service account.
    """
    try:
        cluster.create(render_trial_pod(plan), dry_run=True)
    except ApiError as error:
        if "cannot create resource" in error.what:
            # Controllers make the pods; this user need not have the right to.
            return []
        # Webhooks may refuse pods without an owner, or know no dry run: no word on the real ones.
        is_final = error.status in (FORBIDDEN, INVALID) and "webhook" not in error.what
        may_pass = any(words in error.what for words in MAY_PASS)
        if is_final and not may_pass:
            raise
        return [f"a pod would not be admitted now: {error.what}"]
    return []


def refuse_taken(cluster: Cluster, run_root: Path, held: Object) -> InputError:
    """The error for a job whose name is taken by ``held``, with the commands for that."""
    kind, name = held["kind"], held["metadata"]["name"]
    run_id = (held["metadata"].get("labels") or {}).get(protocol.LABEL_RUN_ID, "")
    namespace = cluster.namespace
    if (run_root / run_id / protocol.PLAN_FILE).is_file() and run_id:
        fix = f"launcher logs -f {run_id} to attach, or launcher stop {run_id} to replace it"
    else:
        fix = f"kubectl delete {kind.lower()} {name} -n {namespace} to replace it"
    return InputError(
        f"{kind} {name} is in namespace {namespace} already", f"{fix}; or --set name=OTHER"
    )
