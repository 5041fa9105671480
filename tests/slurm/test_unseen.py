"""Jobs of which the run folder does not tell yet: in the queue, or in their first lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.typist import ARRAY, PREFIX, SEEN, Typist
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm
NO_ANSWER = """\
#!/bin/sh
case "$*" in *--test-only*) exec {sbatch} "$@" ;; esac
{sbatch} "$@" >/dev/null
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""


def start_array(typist: Typist, nodes: str, *settings: str) -> str:
    """Starts an array of waiting workers, once Slurm has it; the run's id."""
    typist.write(SEEN, PREFIX + ARRAY)
    options = [word for setting in settings for word in ("--set", setting)]
    typist.start("run", "job.yaml", "--on", "slurm", "--nnodes", nodes, *options)
    wait_until(lambda: typist.cluster.queue())
    (run_id,) = typist.run_ids()
    return run_id


def names(cluster: Cluster) -> list[str]:
    return sorted(line.split()[0] for line in cluster.queue())


@pytest.mark.slow  # the test above has a job unseen
def test_fewer_nodes_leave_the_other_elements_in_the_queue(
    typist: Typist, cluster: Cluster
) -> None:
    run_id = start_array(typist, "1:3", "slurm.extra=[--begin=now+1hour]")
    assert len(names(cluster)) == 3
    assert typist("scale", run_id, "2").returncode == 0
    wait_until(lambda: len(names(cluster)) != 3)
    assert names(cluster) == [f"{typist.job}_0", f"{typist.job}_1"]
    assert typist("stop", run_id).returncode == 0
    assert typist.finish()[0] == 143
    assert not names(cluster)


def test_a_job_that_slurm_has_taken_without_an_answer_is_followed(
    typist: Typist, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    own = folder / "sbatch"
    own.write_text(NO_ANSWER.format(sbatch=typist.cluster.folder / "bin/sbatch"))
    own.chmod(0o755)
    typist.env["PATH"] = f"{folder}:{typist.env['PATH']}"
    typist.write("print('trained')", PREFIX)
    done = typist("run", "job.yaml", "--on", "slurm")
    assert (done.returncode, "trained" in done.stdout) == (0, True), done.stderr
    assert "Socket timed out on send/recv operation; but Slurm has taken the job" in done.stderr
