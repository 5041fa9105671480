"""A server that accepts connections and never answers."""

import time

from launcher.contract.errors import ExitCode
from tests.launcher.targets.kubernetes.claims.test_hanging_server import LATE_S
from tests.launcher.targets.kubernetes.conftest import submit_run


def test_a_stop_of_a_run_without_a_launcher_ends_with_its_grace_though_the_server_hangs(
    server, tmp_path, typed
):
    run = submit_run(tmp_path, stop_grace_s=6)
    server.hangs = True
    at = time.monotonic()
    code, said = typed("stop", run.run_id)
    assert time.monotonic() - at < 6 + 2 * 3.5 + LATE_S
    assert code == ExitCode.TARGET_UNREACHABLE
    assert f"error: STILL RUNNING: {run.run_id}: " in said
    assert run.read_outcome() is None
