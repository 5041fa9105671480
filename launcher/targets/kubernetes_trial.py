"""What a server says of a job's pods before there is one: one of them is tried, and forgotten."""

from __future__ import annotations

from launcher.plan import LaunchPlan
from launcher.render.pod import render_trial_pod
from launcher.targets.kubernetes_api import ApiError, Cluster

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
