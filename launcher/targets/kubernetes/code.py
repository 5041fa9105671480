"""The training code on its way into pods.

ConfigMaps carry it, or the launcher sends it into a pod that waits for it; an init container
unpacks it. Or the init container fetches it from a git repository, with the git of its image and
a Secret of Kubernetes' type ``ssh-auth`` (with ``known_hosts`` beside the key) or ``basic-auth``.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.code.record import read_kept_code
from launcher.contract import protocol
from launcher.contract.errors import InputError, TargetError
from launcher.contract.states import NodeState
from launcher.job.git_source import GitSource
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.docker_options import PYTHON
from launcher.targets.hold import is_hold
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.pod_states import PodView

if TYPE_CHECKING:
    from launcher.code.record import PackedCode
    from launcher.follow.console import Console
    from launcher.targets.kubernetes.api import Cluster
    from launcher.targets.kubernetes.target import KubernetesTarget

Object = dict[str, Any]

PART_BYTES = 700_000
"""The most in one ConfigMap: an object may have 1 MiB, and base64 makes four bytes of three."""
MAX_BYTES = 8_000_000
"""The most in a run's ConfigMaps: they lie in the memory of the cluster's etcd."""
ARCHIVE = "code.tar.gz"
CONTAINER = "code"
"""The init container that unpacks or fetches the code."""
SENDING_VERBS = ("create", "get")
"""Rights on pods/exec: a websocket is a GET, and since Kubernetes 1.35 it needs create too."""
LABEL = "launcher.code"
"""The label of ConfigMaps with code: a search for a run's plan then need not read them."""
PARTS = f"{protocol.CONTAINER_CODE}-parts"
OTHER_WAYS = (
    "code: {git: URL, ref: COMMIT}, an image that holds it (launcher build --base IMAGE --tag REF "
    "--push, then --image REF "
    "--code image), or a claim (--code image, kubernetes.volumes: [pvc/CLAIM:/code], "
    "workdir: /code); .launcherignore leaves out what is not code"
)
GIT_KEY = "/launcher/git"
FETCH = f"""\
trap 'exit 143' TERM
(
command -v git >/dev/null || {{
  echo "error: the image has no git" >&2
  echo "  fix: code.image: an image that has, such as alpine/git" >&2
  exit 2
}}
set -e
export HOME=/tmp GIT_TERMINAL_PROMPT=0
export GIT_SSH_COMMAND="ssh -i {GIT_KEY}/ssh-privatekey -o UserKnownHostsFile={GIT_KEY}/known_hosts"
# The kubelet has made the folder, as root.
git config --global safe.directory '*'
git config --global credential.helper '!f() {{ for key in username password; do
  printf "%s=%s\\n" $key "`cat {GIT_KEY}/$key`"; done; }}; f'
cd "$2"
git init -q
git fetch -q --depth 1 "$0" "$1"
git checkout -qf FETCH_HEAD
[ ! -f .gitmodules ] || git submodule update -q --init --recursive --depth 1
mkdir -p "./$3"
) &
wait $!
"""
"""Running it again does the same. No ``$(``: Kubernetes would replace it. A shell that waits hears
SIGTERM, but not one that runs a program."""
RECEIVE = 'mkdir -p "${0%/*}" && head -c "$1" >"$0.$$" && mv "$0.$$" "$0"'
"""Runs beside the waiting program, and takes ``$1`` bytes, since its input has no end."""


def is_sent(plan: LaunchPlan) -> bool:
    """Whether the launcher sends the code into the pods."""
    return PodSettings.of(plan).code_bytes > MAX_BYTES


def check_size(code: PackedCode) -> None:
    """Raises ``InputError`` if a manifest cannot carry the code."""
    if len(code.data) <= MAX_BYTES:
        return
    with tarfile.open(fileobj=io.BytesIO(code.data)) as archive:
        largest = sorted(archive.getmembers(), key=lambda file: -file.size)[:3]
    named = "".join(f"\n  {_kilobytes(file.size):>10}  {file.name}" for file in largest)
    raise InputError(
        f"the code in {code.record.root}, {_sizes(code)}, is too large for a manifest, which takes "
        f"{_kilobytes(MAX_BYTES)} packed; the largest files:{named}",
        f"launcher run, which sends it into the pods; or {OTHER_WAYS}",
    )


def check_sending(cluster: Cluster) -> None:
    """Raises ``InputError`` if this user may not send code into pods."""
    check_exec(
        cluster, f"code of more than {_kilobytes(MAX_BYTES)} packed is sent into a pod", OTHER_WAYS
    )


def check_exec(cluster: Cluster, what: str, other_ways: str = "") -> None:
    """Raises ``InputError`` if this user may not start programs in pods, as ``what`` needs."""
    if not all(cluster.may(verb, "pods/exec") for verb in SENDING_VERBS):
        raise _may_not(cluster, f"{what}, and you may not create and get pods/exec", other_ways)


def check_door(cluster: Cluster, what: str) -> None:
    """As ``check_exec``, for ``kubectl exec``, which reads the pod first."""
    check_exec(cluster, what)
    if not cluster.may("get", "pods"):
        raise _may_not(cluster, f"{what} by kubectl exec, and you may not get pods")


def _may_not(cluster: Cluster, what: str, other_ways: str = "") -> InputError:
    fix = "k8s/base/rbac.yaml grants it" + (f"; or {other_ways}" if other_ways else "")
    return InputError(f"{what} in namespace {cluster.namespace}", fix)


def tell_code(code: PackedCode) -> str:
    """Describes the code that a job's pods get, without a folder of this machine."""
    record = code.record
    commit = f", commit {record.commit[:12]}" if record.commit else ""
    changes = " with changes that are not committed" if commit and record.is_dirty else ""
    return f"{_sizes(code)}{commit}{changes}"


def _sizes(code: PackedCode) -> str:
    record = code.record
    files = f"{record.files} file{'' if record.files == 1 else 's'}"
    return f"{files} of {_kilobytes(record.bytes)}, {_kilobytes(len(code.data))} packed"


def _kilobytes(size: int) -> str:
    return f"{max(size / 1000, 0.1):,.1f} kB" if size < 10_000 else f"{size / 1000:,.0f} kB"


# -- objects ----------------------------------------------------------------------------------


def code_map_names(plan: LaunchPlan) -> tuple[str, ...]:
    """The names of the code's ConfigMaps, different for each run and content.

    For each run, since the cluster may still be deleting those of the run before.
    """
    assert plan.code is not None, "asked for jobs that take code along"
    text = f"{plan.run_id} {plan.code.hash}"
    name = f"{plan.job_name}-code-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    size = 0 if is_sent(plan) else PodSettings.of(plan).code_bytes
    parts = math.ceil(size / PART_BYTES)
    return tuple(f"{name}-{number:02d}" for number in range(parts))


def render_code_maps(plan: LaunchPlan, metadata: Object, code: PackedCode) -> list[Object]:
    """The ConfigMaps that hold the code, in parts; ``metadata`` is what all of them have."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**metadata, "name": name, "labels": {**metadata["labels"], LABEL: "part"}},
            "immutable": True,
            "binaryData": {
                f"{ARCHIVE}.{number:02d}": base64.b64encode(
                    code.data[number * PART_BYTES : (number + 1) * PART_BYTES]
                ).decode()
            },
        }
        for number, name in enumerate(code_map_names(plan))
    ]


def kept_archive(plan: LaunchPlan) -> str:
    """Where a pod keeps sent code: in its run folder, from which its agent serves other pods."""
    assert plan.code is not None, "asked for jobs that take code along"
    run_dir = dict(plan.nodes[0].env)[protocol.RUN_DIR]
    return f"{run_dir}/{protocol.KEPT_CODE.format(hash=plan.code.hash)}"


def render_unpacking(
    plan: LaunchPlan, image: Object, security: Object, resources: Object, run: Object
) -> Object:
    """The init container. It uses the job's image, which is there anyway, unless git needs another.

    ``run`` is the mount of the run folder.
    """
    assert plan.code is not None, "asked for jobs that take code along"
    pods = PodSettings.of(plan)
    inner = plan.code.inner.replace("$", "$$")
    own = render_fetching(pods.git, inner) if pods.git else _render_program(plan, inner, run)
    return {
        "name": CONTAINER,
        **image,
        **own,
        # A namespace may demand them of every container; a pod counts only the larger of the two.
        **({"resources": resources} if resources else {}),
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*own["volumeMounts"], render_code_mount()],
    }


def _render_program(plan: LaunchPlan, inner: str, run: Object) -> Object:
    """``unpack_code``, for what is mounted in parts or was sent into the run folder."""
    assert plan.code is not None, "asked for jobs that take code along"
    pods, waiting = PodSettings.of(plan), []
    pattern = f"{PARTS}/{ARCHIVE}.*"
    mount = {"name": "code-parts", "mountPath": PARTS, "readOnly": True}
    if is_sent(plan):
        pattern, mount = kept_archive(plan), run
        peers = [] if pods.run or not _answers(plan) else [node.name for node in plan.nodes]
        urls = (f"http://{peer}:{pods.probe_port}/{Path(pattern).name}" for peer in peers)
        waiting = [str(pods.start_limit_s or "inf"), *urls]
    program = Path(__file__).with_name("unpack_code.py").read_text()
    # The image's variables and the current folder shall not matter, nor its locale.
    python = [PYTHON, "-I", "-X", "utf8", "-c", program]
    command = [*python, plan.code.hash, protocol.CONTAINER_CODE, inner, pattern, *waiting]
    return {"command": command, "volumeMounts": [mount]}


def _answers(plan: LaunchPlan) -> bool:
    """Whether running pods serve their code to others; pods of a hold do not."""
    return bool(PodSettings.of(plan).probe_port) and not is_hold(plan)


def render_code_mount() -> Object:
    """Where containers see the code."""
    return {"name": "code", "mountPath": protocol.CONTAINER_CODE}


def render_code_volumes(plan: LaunchPlan) -> list[Object]:
    """The code's ConfigMaps, and the pod's own copy of the code, which it may write to."""
    sources = [{"configMap": {"name": name}} for name in code_map_names(plan)]
    git = PodSettings.of(plan).git
    key = {"name": "git", "secret": {"secretName": git.secret}} if git and git.secret else None
    return [
        *([key] if key else []),
        *([{"name": "code-parts", "projected": {"sources": sources}}] if sources else []),
        {"name": "code", "emptyDir": {}},
    ]


def render_fetching(source: GitSource, inner: str) -> dict[str, Any]:
    """The fields of the init container that fetches code from git."""
    mounts = [
        {"name": "git", "mountPath": GIT_KEY, "readOnly": True},
        # ssh refuses to work for a user without a name.
        {"name": "plan", "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True},
    ]
    return {
        **({"image": source.image} if source.image else {}),
        "command": ["sh", "-c", FETCH, source.git, source.ref, protocol.CONTAINER_CODE, inner],
        "volumeMounts": mounts if source.secret else [],
    }


class CodeSender:
    """Sends the code to one pod. The others get it from there, as ``unpack_code`` does."""

    def __init__(self, target: KubernetesTarget, plan: LaunchPlan, console: Console) -> None:
        self._target, self._plan, self._console = target, plan, console
        self._sent: set[str] = set()
        """Uids of the pods to which this process has sent it."""
        self._told: set[str] = set()

    def turn(self, pods: tuple[PodView, ...]) -> None:
        """Sends it to a waiting pod that cannot get it from another. Blocks until it is sent."""
        there = [pod for pod in pods if pod.state is not NodeState.EXITED]
        waiting = [p for p in there if p.preparing == CONTAINER and p.uid not in self._sent]
        has_code = any(pod.state is NodeState.RUNNING or pod.uid in self._sent for pod in there)
        settings = PodSettings.of(self._plan)
        has_code = has_code and bool(settings.run or _answers(self._plan))
        code = read_kept_code(Path(self._plan.run_dir)) if waiting and not has_code else None
        if code is None:
            return
        pod = waiting[0]
        self._tell(f"sending the code to {pod.name}: {tell_code(code)}")
        argv = ("sh", "-c", RECEIVE, kept_archive(self._plan), str(len(code.data)))
        # From here on Ctrl-C interrupts at once, not at the next turn of the loop.
        self._target.is_sending = True
        try:
            self._target.job(self._plan).cluster.send(pod.name, CONTAINER, argv, code.data)
            self._sent.add(pod.uid)
        except TargetError as error:
            self._tell(f"{error.what}; trying again")
        finally:
            self._target.is_sending = False

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._console.note(line)
