"""Faults by real means in the middle of an elastic run: it goes on, and ends with nothing left."""

import pytest

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]


def test_a_host_whose_disk_is_full_is_named_before_anything_starts(small_disk, typist):
    host = small_disk
    host.run("sh", "-c", "head -c 16m /dev/zero >/root/.launcher/full", check=False)
    typist.write("print('never')")
    # Else the run would begin on others.
    told = typist.fails(3, "run", "job.yaml", "--nnodes", "2", "--include", "gpu1,gpu2")
    assert "gpu2: " in told
    assert "No space left on device" in told
    assert "make room there" in told
