"""Jobs of which the run folder does not tell yet: in the queue, or in their first lines."""

import pytest

from tests.slurm.typist import PREFIX

pytestmark = pytest.mark.slurm
NO_ANSWER = """\
#!/bin/sh
case "$*" in *--test-only*) exec {sbatch} "$@" ;; esac
{sbatch} "$@" >/dev/null
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""


def test_a_job_that_slurm_has_taken_without_an_answer_is_followed(typist, tmp_path):
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
