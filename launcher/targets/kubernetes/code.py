"""The training code on its way into pods: ConfigMaps, and an init container that unpacks them."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.docker_options import PYTHON
from launcher.targets.kubernetes.git_code import render_fetching
from launcher.targets.kubernetes.plan import PodSettings

if TYPE_CHECKING:
    from launcher.code.record import PackedCode
    from launcher.targets.kubernetes.api import Cluster

Object = dict[str, Any]

PART_BYTES = 700_000
"""Of one ConfigMap: an object may have 1 MiB, and base64 makes four bytes of three."""
MAX_BYTES = 8_000_000
"""Of the ConfigMaps of a run: they lie in the memory of the cluster's etcd."""
ARCHIVE = "code.tar.gz"
CONTAINER = "code"
"""The init container that has the code."""
SENDING_VERBS = ("create", "get")
"""Of pods/exec. A websocket is a GET; since Kubernetes 1.35 it needs the right to create too."""
LABEL = "launcher.code"
"""Of the ConfigMaps with code: who looks for a run's plan does not read them all."""
PARTS = f"{protocol.CONTAINER_CODE}-parts"
OTHER_WAYS = (
    "code: {git: URL, ref: COMMIT}, an image that holds it (launcher build --base IMAGE --tag REF "
    "--push, then --image REF "
    "--code image), or a claim (--code image, kubernetes.volumes: [pvc/CLAIM:/code], "
    "workdir: /code); .launcherignore leaves out what is not code"
)


def is_sent(plan: LaunchPlan) -> bool:
    """Whether the launcher sends the code into the pods."""
    return PodSettings.of(plan).code_bytes > MAX_BYTES


def check_size(code: PackedCode) -> None:
    """Raises ``InputError`` where a manifest cannot carry the code."""
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
    """Raises ``InputError`` where this user may not send code into pods."""
    check_exec(
        cluster, f"code of more than {_kilobytes(MAX_BYTES)} packed is sent into a pod", OTHER_WAYS
    )


def check_exec(cluster: Cluster, what: str, other_ways: str = "") -> None:
    """Raises ``InputError`` where this user may not start programs in pods, as ``what`` needs."""
    if all(cluster.may(verb, "pods/exec") for verb in SENDING_VERBS):
        return
    raise InputError(
        f"{what}, and you may not create and get pods/exec in namespace {cluster.namespace}",
        "k8s/base/rbac.yaml grants it" + (f"; or {other_ways}" if other_ways else ""),
    )


def tell_code(code: PackedCode) -> str:
    """How much code a job's pods get, and which, without a folder of this machine."""
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
    """The names of the code's ConfigMaps: others for each run and content.

    With the run, as the cluster still deletes an earlier run's when the next one comes.
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
    """Where a pod has code that was sent: in its run folder, which the agent gives others."""
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
        # A namespace may demand them of every container. A pod takes the larger of both.
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
        peers = [] if pods.run or not pods.probe_port else [node.name for node in plan.nodes]
        urls = (f"http://{peer}:{pods.probe_port}/{Path(pattern).name}" for peer in peers)
        waiting = [str(pods.start_limit_s or "inf"), *urls]
    program = Path(__file__).with_name("unpack_code.py").read_text()
    # The image's variables and the current folder shall not matter, nor its locale.
    python = [PYTHON, "-I", "-X", "utf8", "-c", program]
    command = [*python, plan.code.hash, protocol.CONTAINER_CODE, inner, pattern, *waiting]
    return {"command": command, "volumeMounts": [mount]}


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
