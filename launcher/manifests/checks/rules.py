"""Every rule of ``launcher check`` for manifests: how bad a breach is (error or warning) and why it
hurts; and the breach itself.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.manifests.source import Value, render_path
from launcher.yamlfile.problem import Problem

ERROR = "error"
"""The object is refused, or the job cannot do what its manifest says."""
WARNING = "warning"
"""The job will run, but slower, less safely or not as one would expect."""


class AnyRule(enum.Enum):
    """A rule of manifests or of training scripts: how bad its breach is, and why it hurts."""

    def __init__(self, severity: str, why: str) -> None:
        self.id = self.name.lower().replace("_", "-")
        """The rule's name in ``--json`` and the docs."""
        self.severity = severity
        self.why = why


@enum.unique
class Rule(AnyRule):
    """Every rule of manifests."""

    YAML = ERROR, "an API server cannot read it, or reads something else than was meant"
    ENV_NOT_TEXT = ERROR, "an API server refuses a value of env that is not text"
    SECRET_IN_CLEAR = WARNING, "whoever may read the object, its history or this file has it"
    GPU_REQUESTS = ERROR, "GPUs cannot be overcommitted: requests without equal limits are refused"
    SHM_SMALL = WARNING, "/dev/shm is 64 MB: data loader workers and NCCL die of a bus error"
    SHM_UNBOUNDED = WARNING, "without a sizeLimit it may grow to half of the node's memory"
    SHM_OVER_MEMORY = ERROR, "it counts against the memory limit: filling it gets the pod killed"
    TOLERATION = ERROR, "the pod is refused, but an operator's object that describes it is not"
    HOST_NETWORK_DNS = ERROR, "the host's name servers do not resolve names of pods and services"
    JOB_NAME = ERROR, "names of pods and services are made from it; they have at most 63 characters"
    RESTART_POLICY_VALUE = ERROR, "nothing refuses it; the cluster then refuses every pod, for ever"
    RESTART_ALWAYS = ERROR, "a container that has succeeded is started again: the job never ends"
    POD_RESTART_POLICY = WARNING, "the operator overwrites it with that of the replica"
    CLEAN_POD_POLICY_VALUE = ERROR, "nothing refuses it, and no pod is ever cleaned up"
    CLEAN_POD_POLICY_NONE = WARNING, "pods of a finished job stay; those that still run hold GPUs"
    BACKOFF_NEGATIVE = ERROR, "nothing refuses it, and the job fails at its first restart"
    BACKOFF_WITH_EXIT_CODE = ERROR, "it counts restarts in a pod; ExitCode makes new pods instead"
    DEADLINE_IS_LATE = WARNING, "it is looked at only at another event: a hung job keeps its GPUs"
    NO_ADDRESS = ERROR, "no worker is told an address: each trains alone, or waits for ever"
    ELASTIC_BOUNDS = ERROR, "nothing refuses it, and torchrun does: every pod fails at its start"
    ELASTIC_UNWRITTEN = WARNING, "its default: no restarts, fixed bounds, an id that all jobs share"
    ELASTIC_MASTER = ERROR, "the endpoint is still worker 0, and nobody gives the Master its rank"
    ELASTIC_SUCCESS = (
        WARNING,
        "python does not read PET_*: each pod trains by itself, and the first to end ends the job",
    )
    RDZV_CONF_EMPTY = ERROR, "the operator crashes on it: no pods come, and no event says why"
    STANDALONE = ERROR, "the operator sets PET_STANDALONE to nothing, and torchrun crashes on it"
    NPROC_AUTO = WARNING, "without GPUs auto is the number of the host's cores, whatever the limit"
    NPROC_NOT_GPUS = ERROR, "workers without a GPU fail or share; GPUs without a worker are idle"
    RANK_COUNTS_PODS = WARNING, "WORLD_SIZE counts processes that only torchrun starts: pods hang"
    ENV_OVERRIDDEN = WARNING, "the operator appends its own value, and the last one wins"
    READINESS_PROBE = WARNING, "only ready pods are published: one that waits for training never is"


@dataclass(frozen=True, kw_only=True)
class Breach(Problem):
    """A breach of a rule at a place of a manifest or of a training script."""

    rule: AnyRule
    object: str = ""

    @property
    def file(self) -> str:
        return self.where.removesuffix(f":{self.line}")

    def to_jsonable(self) -> dict[str, str | int]:
        """Plain data for ``--json``."""
        return {
            "file": self.file,
            "line": self.line,
            "rule": self.rule.id,
            "severity": self.rule.severity,
            "object": self.object,
            "path": render_path(self.path),
            "what": self.what,
            "why": self.rule.why,
            "fix": self.fix,
        }


Breaches = Iterator[Breach]


def hit(rule: Rule, at: Value, what: str, fix: str) -> Breach:
    """A breach at a place; ``fix`` is what to write instead."""
    line = at.source.nearest(at.path).line
    return Breach(rule=rule, where=at.where, line=line, path=at.path, what=what, fix=fix)
