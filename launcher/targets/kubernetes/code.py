"""The training code on its way into pods: a ConfigMap, and an init container that unpacks it."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import io
import tarfile
from typing import TYPE_CHECKING, Any

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.docker_options import PYTHON

if TYPE_CHECKING:
    from launcher.code.record import CodeRecord, PackedCode

Object = dict[str, Any]

MAX_PACKED_BYTES = 700_000
"""An object may have 1 MiB, and base64 makes four bytes of three."""
ARCHIVE = "code.tar.gz"
FIX = (
    "an image that holds it (launcher build --base IMAGE --tag REF --push, then --image REF "
    "--code image), or a claim (--code image, kubernetes.volumes: [pvc/CLAIM:/code], "
    "workdir: /code); .launcherignore leaves out what is not code"
)
UNPACK = """\
import os, sys, tarfile
archive, folder, inner = sys.argv[1:]
safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
with tarfile.open(archive) as code:
    code.extractall(folder, **safe)
os.makedirs(os.path.join(folder, inner), exist_ok=True)
"""
"""What the init container runs; a second time it writes the same. No ``$(``, which Kubernetes
replaces."""


@functools.lru_cache(maxsize=1)
def repack_code(code: PackedCode) -> bytes:
    """The archive as it goes into a ConfigMap. Raises ``InputError`` where it is too large."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as zipped:
        zipped.write(gzip.decompress(code.data))
    data = packed.getvalue()
    if len(data) > MAX_PACKED_BYTES:
        with tarfile.open(fileobj=io.BytesIO(code.data)) as archive:
            largest = sorted(archive.getmembers(), key=lambda file: -file.size)[:3]
        named = "".join(f"\n  {_kilobytes(file.size):>10}  {file.name}" for file in largest)
        raise InputError(
            f"the code in {code.record.root}, {_sizes(code.record, data)}, is too large for a "
            f"ConfigMap, which takes {_kilobytes(MAX_PACKED_BYTES)} packed; the largest files:"
            f"{named}",
            FIX,
        )
    return data


def tell_code(code: PackedCode) -> str:
    """How much code a job's pods get, and which, without a folder of this machine."""
    record = code.record
    commit = f", commit {record.commit[:12]}" if record.commit else ""
    changes = " with changes that are not committed" if commit and record.is_dirty else ""
    return f"{_sizes(record, repack_code(code))}{commit}{changes}"


def _sizes(record: CodeRecord, packed: bytes) -> str:
    files = f"{record.files} file{'' if record.files == 1 else 's'}"
    return f"{files} of {_kilobytes(record.bytes)}, {_kilobytes(len(packed))} packed"


def _kilobytes(size: int) -> str:
    return f"{max(size / 1000, 0.1):,.1f} kB" if size < 10_000 else f"{size / 1000:,.0f} kB"


# -- objects ----------------------------------------------------------------------------------


def code_map_name(plan: LaunchPlan) -> str:
    """The name of the code's ConfigMap: one for each run and content.

    With the run, as the cluster still deletes an earlier run's when the next one comes.
    """
    assert plan.code is not None, "asked for jobs that take code along"
    text = f"{plan.run_id} {plan.code.hash}"
    return f"{plan.job_name}-code-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def render_code_map(metadata: Object, code: PackedCode) -> Object:
    """The ConfigMap that holds the code."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "binaryData": {ARCHIVE: base64.b64encode(repack_code(code)).decode()},
    }


def render_unpacking(
    plan: LaunchPlan, image: Object, security: Object, resources: Object
) -> Object:
    """The init container. It uses the job's image, which is there anyway and has Python."""
    assert plan.code is not None, "asked for jobs that take code along"
    # The image's variables and the current folder shall not matter, nor its locale.
    python = [PYTHON, "-I", "-X", "utf8", "-c", UNPACK]
    inner = plan.code.inner.replace("$", "$$")
    archive = f"{protocol.CONTAINER_CODE}.tar.gz"
    return {
        "name": "code",
        **image,
        "command": [*python, archive, protocol.CONTAINER_CODE, inner],
        # A namespace may demand them of every container. A pod takes the larger of both.
        **({"resources": resources} if resources else {}),
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "code-archive", "mountPath": archive, "subPath": ARCHIVE, "readOnly": True},
            render_code_mount(),
        ],
    }


def render_code_mount() -> Object:
    """Where containers see the code."""
    return {"name": "code", "mountPath": protocol.CONTAINER_CODE}


def render_code_volumes(plan: LaunchPlan) -> list[Object]:
    """The code's ConfigMap, and the pod's own copy of the code, which it may write to."""
    return [
        {"name": "code-archive", "configMap": {"name": code_map_name(plan)}},
        {"name": "code", "emptyDir": {}},
    ]
