"""The training code on its way into pods: how large it may be, the ConfigMaps that carry it, the
init container that unpacks it."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.contract import protocol, typed
from launcher.contract.errors import InputError
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.docker_options import PYTHON
from launcher.targets.kubernetes.plan import PodSettings

if TYPE_CHECKING:
    from launcher.code.record import PackedCode

Object = dict[str, Any]

PART_BYTES = 700_000
"""The most in one ConfigMap: an object may have 1 MiB, and base64 makes four bytes of three."""
MAX_BYTES = 8_000_000
"""The most in a run's ConfigMaps: they lie in the memory of the cluster's etcd."""
ARCHIVE = "code.tar.gz"
CONTAINER = "code"
"""The init container that unpacks the code."""
LABEL = "launcher.code"
"""The label of ConfigMaps with code: a search for a run's plan then need not read them."""
PARTS = f"{protocol.CONTAINER_CODE}-parts"


def check_size(code: PackedCode) -> None:
    """Raises ``InputError`` if ConfigMaps cannot carry the code."""
    if len(code.data) <= MAX_BYTES:
        return
    with tarfile.open(fileobj=io.BytesIO(code.data)) as archive:
        largest = sorted(archive.getmembers(), key=lambda file: -file.size)[:3]
    named = "".join(f"\n  {_kilobytes(file.size):>10}  {file.name}" for file in largest)
    build = typed.command("build", "--base", "IMAGE", "--tag", "REF", "--push")
    raise InputError(
        f"the code in {code.record.root}, {_sizes(code)}, is too large for ConfigMaps, which take "
        f"{_kilobytes(MAX_BYTES)} packed; the largest files:{named}",
        f"an image that holds it ({build}, then --image REF --code image), "
        "or a claim (--code image, kubernetes.volumes: [pvc/CLAIM:/code], workdir: /code); "
        ".launcherignore leaves out what is not code",
    )


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
    parts = math.ceil(PodSettings.of(plan).code_bytes / PART_BYTES)
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


def render_unpacking(
    plan: LaunchPlan, image: Object, security: Object, resources: Object
) -> Object:
    """The init container. It uses the job's image, which is there anyway."""
    assert plan.code is not None, "asked for jobs that take code along"
    program = Path(__file__).with_name("unpack_code.py").read_text()
    inner, pattern = plan.code.inner.replace("$", "$$"), f"{PARTS}/{ARCHIVE}.*"
    # The image's variables and the current folder shall not matter, nor its locale.
    python = [PYTHON, "-I", "-X", "utf8", "-c", program]
    parts = {"name": "code-parts", "mountPath": PARTS, "readOnly": True}
    return {
        "name": CONTAINER,
        **image,
        "command": [*python, plan.code.hash, protocol.CONTAINER_CODE, inner, pattern],
        # A namespace may demand them of every container; a pod counts only the larger of the two.
        **({"resources": resources} if resources else {}),
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [parts, render_code_mount()],
    }


def render_code_mount() -> Object:
    """Where containers see the code."""
    return {"name": "code", "mountPath": protocol.CONTAINER_CODE}


def render_code_volumes(plan: LaunchPlan) -> list[Object]:
    """The code's ConfigMaps, and the pod's own copy of the code, which it may write to."""
    sources = [{"configMap": {"name": name}} for name in code_map_names(plan)]
    return [
        {"name": "code-parts", "projected": {"sources": sources}},
        {"name": "code", "emptyDir": {}},
    ]
