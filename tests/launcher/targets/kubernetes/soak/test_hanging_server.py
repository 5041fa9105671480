"""A server that accepts connections and never answers."""

from __future__ import annotations

import time
from pathlib import Path

from launcher.contract.errors import ExitCode
from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.cluster_run import plan_in
from tests.launcher.targets.kubernetes.claims.test_hanging_server import LATE_S


def test_a_stop_of_a_run_without_a_launcher_ends_with_its_grace_though_the_server_hangs(
    server, tmp_path, typed
):
    plan = plan_in(tmp_path, stop_grace_s=6)
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", 1.0)
    KubernetesTarget(tmp_path / "runs").submit(plan)
    server.hangs = True
    at = time.monotonic()
    code, said = typed("stop", run.run_id)
    assert time.monotonic() - at < 6 + 2 * 3.5 + LATE_S
    assert code == ExitCode.TARGET_UNREACHABLE
    assert f"error: STILL RUNNING: {run.run_id}: " in said
    assert run.read_outcome() is None
