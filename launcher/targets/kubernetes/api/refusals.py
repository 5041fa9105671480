"""What an API server refuses: the error with its fix, and whether a refusal of a pod lasts."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from launcher.contract import typed
from launcher.contract.errors import TargetError
from launcher.targets.kubernetes.api.kubeconfig import BUSY, official_client

if TYPE_CHECKING:
    from launcher.targets.kubernetes.api.cluster import Cluster, ObjectPlace

FORBIDDEN, NOT_FOUND, CONFLICT, GONE = 403, 404, 409, 410
OPERATORS = {
    "PyTorchJob": "Kubeflow's training operator",
    "TrainJob": "Kubeflow Trainer",
    "TrainingRuntime": "Kubeflow Trainer",
    "JobSet": "JobSet",
    "PodGroup": "Volcano",
}
"""The operator that brings each kind."""


class ApiError(TargetError):
    """The API server refused a request; ``status`` is HTTP's.

    ``is_kind_missing``: the server does not know the object's kind, not only its name.
    """

    def __init__(
        self, what: str, hint: str = "", *, status: int, is_kind_missing: bool = False
    ) -> None:
        super().__init__(what, hint)
        self.status = status
        self.is_kind_missing = is_kind_missing


@contextlib.contextmanager
def api_errors(doing: str, cluster: Cluster, place: ObjectPlace | None = None) -> Iterator[None]:
    """Turns the client's errors into ``TargetError`` with the fix."""
    client, _ = official_client()
    import urllib3

    try:
        yield
    except client.ApiException as error:
        raise _api_error(error, doing, cluster, place) from error
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        why = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
        why = why.rpartition("Failed to establish a new connection: ")[2]
        # HTTPSConnectionPool(...): Read timed out. (read timeout=0.874989)
        why = re.sub(r"^\w+Pool\(.*?\): |\.? \(\w+ timeout=.*\)$", "", why)
        raise TargetError(
            f"the cluster of context {cluster.context} does not answer: {why}",
            f"{cluster.kubectl} cluster-info; kubectl config get-contexts lists others",
        ) from error


def _api_error(error: Any, doing: str, cluster: Cluster, place: ObjectPlace | None) -> ApiError:
    status = int(error.status or 0)
    message, reason = str(error.reason or ""), ""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        body = json.loads(error.body)
        message, reason = body.get("message") or message, body.get("reason") or ""
    is_unknown = not reason or "could not find the requested resource" in message
    if status == NOT_FOUND and place is not None and place.kind in OPERATORS and is_unknown:
        what = f"this cluster has no {place.kind} CRD, which {OPERATORS[place.kind]} brings"
        page = typed.command("docs", "kubernetes")
        hint = f"--kind job needs no operator; {page} says how to install one"
        if place.kind == "PodGroup":
            hint = "leave kubernetes.gang out, or install Volcano"
        return ApiError(what, hint, status=status, is_kind_missing=True)
    what = f"the cluster of context {cluster.context} cannot {doing}: {message}"
    return ApiError(what, _hint(status, message, cluster), status=status)


def _hint(status: int, message: str, cluster: Cluster) -> str:
    namespace, kubectl = cluster.namespace, cluster.kubectl
    if status == FORBIDDEN:
        look = f"{kubectl} auth can-i --list -n {namespace}"
        rights = f"{look}; k8s/base/rbac.yaml grants what is needed"
        return find_fix(message, namespace, kubectl) or rights
    if status == NOT_FOUND and "namespaces" in message:
        return f"{kubectl} create namespace {namespace}, or kubernetes.namespace of the job"
    wrong = f"{typed.command('check')} says what is wrong with a manifest"
    hints = {
        400: wrong,
        401: f"log in again ({kubectl} get pods shows whether it works)",
        409: f"--set name=OTHER; or {typed.command('stop', 'RUN')} ends the run that has the name",
        422: wrong,
        BUSY: "its API server is overloaded: wait a minute, then the same command",
    }
    return hints.get(status, "")


# -- pods that are refused -----------------------------------------------------------------------


def is_for_good(message: str) -> bool:
    """Whether the server refuses a pod in a way that only a person can change."""
    # Webhooks may refuse pods without an owner, or know no dry run; the job's own may pass. A
    # quota lets pods in when others have ended, or once it has been counted.
    passing = "webhook", "exceeded quota", "status unknown for quota"
    is_refused = "is forbidden: " in message or "is invalid: " in message
    return is_refused and not any(words in message for words in passing)


def find_fix(message: str, namespace: str, kubectl: str = "kubectl") -> str:
    """The fix for a pod that the server refused; empty if none is known."""
    if "exceeded quota" in message or "failed quota" in message:
        return f"{kubectl} describe quota -n {namespace}; then resources: of the job"
    if "PodSecurity" in message:
        return f"take out of the job what it names, or {kubectl} describe namespace {namespace}"
    if account := re.search(r'serviceaccount "([^"]+)" not found', message):
        make = f"{kubectl} create serviceaccount {account[1]} -n {namespace}"
        return f"{make}, or kubernetes.service_account of the job"
    if "LimitRange" in message or "per Container" in message or "per Pod" in message:
        return f"{kubectl} describe limits -n {namespace}; then resources: of the job"
    return ""
