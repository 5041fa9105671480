"""``launcher play``: a PyTorchJob as local containers, by the operator's rules. Pure."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from launcher.contract import protocol, typed
from launcher.contract.causes import RETRY_FROM
from launcher.contract.errors import InputError, name_exit_code
from launcher.contract.node_plan import Env
from launcher.manifests.play_values import PlayedMount, Surroundings, expand, read_env, read_mounts
from launcher.manifests.pytorchjob import CONTAINER, MASTER, PyTorchJob, Replica, operator_env
from launcher.manifests.source import Together, Value, count_gpus, shm_volume
from launcher.targets.kubernetes.pod_states import Ending, is_oom, last_words, order_of_failure

OF_A_CLUSTER = (
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "nodeName"),
    *("priorityClassName", "schedulerName", "runtimeClassName", "serviceAccountName"),
    *("dnsPolicy", "dnsConfig", "imagePullSecrets", "imagePullPolicy", "lifecycle"),
    *("livenessProbe", "readinessProbe", "startupProbe", "activeDeadlineSeconds"),
    *("schedulingPolicy", "ttlSecondsAfterFinished", "suspend", "managedBy"),
)
"""Fields of a pod, of its container and of ``runPolicy`` that have no effect here."""
REFUSED = ("hostNetwork", "hostPID", "hostIPC", "hostAliases", "shareProcessNamespace")
"""Fields of a pod that would show its program something else here than in a cluster."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the local engine has: logical CPUs, ids of GPUs, and its caller's environment."""

    cpu_count: int
    gpus: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class PlayedPod:
    """One replica as a container. ``entrypoint`` and ``arguments`` are None if the image's own are
    used; ``cpus`` is None for no limit, ``shm_bytes`` for the engine's 64 MB."""

    name: str
    kind: str
    index: int
    image: str
    entrypoint: tuple[str, ...] | None
    arguments: tuple[str, ...] | None
    env: Env = field(repr=False)
    aliases: tuple[str, ...]
    workdir: str | None
    user: str | None
    cap_drop: tuple[str, ...]
    cap_add: tuple[str, ...]
    no_new_privileges: bool
    read_only: bool
    cpus: float | None
    memory_bytes: int | None
    shm_bytes: int | None
    device_ids: tuple[str, ...]
    mounts: tuple[PlayedMount, ...]
    termination_log: str
    """Where the container leaves its last words."""
    restart_policy: str
    grace_s: int


@dataclass(frozen=True, kw_only=True)
class Play:
    """A job as it is played; each note is one line about what differs from a cluster."""

    job_name: str
    pods: tuple[PlayedPod, ...]
    is_elastic: bool
    backoff_limit: int | None
    clean_pod_policy: str
    notes: tuple[str, ...]

    @property
    def has_master(self) -> bool:
        return any(pod.kind == MASTER for pod in self.pods)

    @property
    def success_rule(self) -> str:
        """Whose success makes the job succeed, in words."""
        if self.has_master:
            return "the Master's success is the job's"
        if self.is_elastic:
            return "elastic: any one worker's success is the job's"
        return "all workers' success is the job's"


# -- planning -----------------------------------------------------------------------------------


def plan_play(item: Value, together: Together, machine: Machine, image: str | None = None) -> Play:
    """The containers of a PyTorchJob; ``image`` is used instead of the manifest's.

    Raises ``InputError`` for what the operator would refuse, and for what cannot be played here.
    """
    job = PyTorchJob(item=item)
    if not job.replicas:
        fix = typed.command("check", _file(item))
        raise InputError(f"{item.where}: {job.name} has no replicas", fix)
    gpus = list(machine.gpus)
    pods = [
        _plan_pod(job, replica, index, together, machine, image, gpus)
        for replica in job.replicas
        for index in range(replica.pods)
    ]
    policy = job.run_policy
    return Play(
        job_name=job.name,
        pods=tuple(pods),
        is_elastic=bool(job.elastic),
        backoff_limit=policy["backoffLimit"].number,
        clean_pod_policy=job.clean_pod_policy,
        notes=tuple(_notes(job, pods)),
    )


def _plan_pod(
    job: PyTorchJob,
    replica: Replica,
    index: int,
    together: Together,
    machine: Machine,
    image: str | None,
    gpus: list[str],
) -> PlayedPod:
    container, pod = _only_container(replica), replica.pod
    name = f"{job.name}-{replica.kind.lower()}-{index}"
    labels = replica.spec["template"]["metadata"]["labels"]
    around = Surroundings(
        together=together,
        pod_name=name,
        namespace=job.namespace,
        labels={key: value.text for key, value in labels.items()},
        environ=machine.environ,
    )
    env = read_env(container, around) | dict(operator_env(job, replica, index))
    wanted = count_gpus(container) or 0
    given, gpus[:wanted] = tuple(gpus[:wanted]), []
    grace_s = pod["terminationGracePeriodSeconds"].number
    domain = f"{name}.{job.namespace}.svc"
    limits, security = container["resources"]["limits"], container["securityContext"]
    cpus, memory = limits["cpu"].quantity, limits["memory"].quantity
    return PlayedPod(
        name=name,
        kind=replica.kind,
        index=index,
        image=image or container["image"].text,
        aliases=(name, f"{name}.{job.namespace}", domain, f"{domain}.cluster.local"),
        device_ids=given,
        restart_policy=replica.restart_policy,
        grace_s=30 if grace_s is None else grace_s,
        entrypoint=_words(container["command"], env),
        arguments=_words(container["args"], env),
        env=tuple(env.items()),
        workdir=container["workingDir"].text or None,
        user=_user(security, pod["securityContext"]),
        cap_drop=tuple(c.text for c in security["capabilities"]["drop"]),
        cap_add=tuple(c.text for c in security["capabilities"]["add"]),
        no_new_privileges=security["allowPrivilegeEscalation"].data is False,
        read_only=security["readOnlyRootFilesystem"].data is True,
        cpus=None if cpus is None else min(cpus, float(machine.cpu_count)),
        memory_bytes=None if memory is None else int(memory),
        shm_bytes=_shm_bytes(pod, container),
        mounts=tuple(read_mounts(pod, container, around)),
        termination_log=container["terminationMessagePath"].text or protocol.TERMINATION_LOG,
    )


def _only_container(replica: Replica) -> Value:
    """The container called pytorch. Raises ``InputError`` for anything beside it in the pod."""
    container, pod = replica.container, replica.pod
    if container is None:
        fix = f"name it pytorch; launcher check {_file(pod)}"
        raise InputError(f"{pod['containers'].where}: no container pytorch", fix)
    others = (one for kind in ("containers", "initContainers") for one in pod[kind])
    refused = [
        (one, f"container {one['name'].text}") for one in others if one["name"].text != CONTAINER
    ]
    refused += [(pod[key], key) for key in REFUSED if pod[key]]
    for value, what in refused:
        fix = "render it with --code image, or take it out of a copy; play starts pytorch alone"
        raise InputError(f"{value.where}: {what} is not played", fix)
    return container


def _file(value: Value) -> str:
    """The file that a value was read from, as it is typed."""
    return shlex.quote(value.where.rpartition(":")[0])


def _user(*contexts: Value) -> str | None:
    """``uid:gid`` of the first of the security contexts that say them."""
    uids, gids = ([c[key].number for c in contexts] for key in ("runAsUser", "runAsGroup"))
    uid, gid = (next((i for i in ids if i is not None), None) for ids in (uids, gids))
    return None if uid is None else f"{uid}:{gid or 0}"


def _words(words: Value, env: Mapping[str, str]) -> tuple[str, ...] | None:
    return tuple(expand(word.text, env) for word in words) if words else None


def _shm_bytes(pod: Value, container: Value) -> int | None:
    """The size of a memory volume at /dev/shm: its own, else the container's memory limit."""
    volume, limit = shm_volume(pod, container), container["resources"]["limits"]["memory"]
    if volume is None or volume["emptyDir"]["medium"].text != "Memory":
        return None
    return int(volume["emptyDir"]["sizeLimit"].quantity or limit.quantity or 2**30)


# -- what is not as in a cluster ----------------------------------------------------------------


def _notes(job: PyTorchJob, pods: list[PlayedPod]) -> Iterator[str]:
    places = [job.run_policy, *(one for r in job.replicas for one in (r.pod, r.container) if one)]
    if ignored := [key for key in OF_A_CLUSTER if any(place[key] for place in places)]:
        yield f"no effect here: {', '.join(ignored)}"
    containers = [replica.container for replica in job.replicas if replica.container]
    if any(count_gpus(one) for one in containers) and not any(pod.device_ids for pod in pods):
        yield "no GPUs here: containers start without them"


# -- following ----------------------------------------------------------------------------------


class Next(enum.Enum):
    """What becomes of a pod whose container has ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RESTART = "restart"
    """The kubelet starts a new container in the same pod."""
    RECREATE = "recreate"
    """The operator makes a new pod of the same name."""


def decide_next(restart_policy: str, exit_code: int) -> Next:
    """The rule of a replica's restartPolicy; ``exit_code`` is a shell's."""
    if exit_code == 0 and restart_policy != "Always":
        return Next.SUCCEEDED
    if restart_policy in ("Always", "OnFailure"):
        return Next.RESTART
    if restart_policy == "ExitCode" and exit_code >= RETRY_FROM:
        return Next.RECREATE
    return Next.FAILED


@dataclass(frozen=True, kw_only=True)
class PodState:
    """A pod's state: ``ended`` is None while it has a container or gets one; ``restarts`` counts
    those by the kubelet; ``ending`` is how its last container ended."""

    ended: Next | None = None
    restarts: int = 0
    ending: Ending | None = None


@dataclass(frozen=True, kw_only=True)
class PlayOutcome:
    """How the job ended, by the operator's rules."""

    succeeded: bool
    why: str


def decide_outcome(play: Play, states: tuple[PodState, ...]) -> PlayOutcome | None:
    """The job's end, or None while it goes on. The operator looks for failures first."""
    restarts = sum(state.restarts for state in states)
    limit = play.backoff_limit
    if limit is not None and restarts > 0 and restarts >= limit:
        first = "".join(f"; {tell_ending(p.name, e)}" for p, e in _sort_failures(play, states)[:1])
        why = f"{restarts} restarts of containers, backoffLimit is {limit}{first}"
        return PlayOutcome(succeeded=False, why=why)
    succeeded = [
        pod.name
        for pod, state in zip(play.pods, states, strict=True)
        if state.ended is Next.SUCCEEDED and (pod.kind == MASTER or not play.has_master)
    ]
    needed = 1 if play.has_master or play.is_elastic else len(play.pods)
    if len(succeeded) >= needed:
        return PlayOutcome(succeeded=True, why=f"{succeeded[0]} ended with 0; {play.success_rule}")
    if any(state.ended is Next.FAILED for state in states):
        failed = [replace(s, ending=None) if s.ended is not Next.FAILED else s for s in states]
        pod, ending = _sort_failures(play, failed)[0]
        rule = f", which {pod.restart_policy} does not restart"
        return PlayOutcome(succeeded=False, why=tell_ending(pod.name, ending, rule))
    return None


def tell_ending(name: str, ending: Ending, following: str = "") -> str:
    """How a container ended, what follows from that, and its last words."""
    told = f"{name} ended with {name_exit_code(ending.exit_code)}{following}"
    said = last_words(ending.message)
    if is_oom(ending.word, ending.message):
        said = f"{ending.word}; raise limits.memory; /dev/shm counts against it"
    return f"{told}: {said}" if said else told


def _sort_failures(play: Play, states: Sequence[PodState]) -> list[tuple[PlayedPod, Ending]]:
    """The pods whose last containers failed; the one that explains the failure comes first."""
    failed = [
        (pod, state.ending)
        for pod, state in zip(play.pods, states, strict=True)
        if state.ending is not None and state.ending.exit_code
    ]
    return sorted(failed, key=lambda one: order_of_failure(one[1].exit_code, one[1]))
