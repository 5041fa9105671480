"""A full disk under a node: told as what it is, and never the end of who tells it."""

from __future__ import annotations

import pytest

from tests.launcher.agent.test_full_disk import FILL, disk, node


@pytest.mark.mount
@pytest.mark.parametrize("start", ["fresh", "fork"])
def test_a_worker_that_fills_the_disk_ends_the_node_by_its_own_reason(node, disk, start):
    # Only rank 0 fills it: a worker that is stopped in a write may leave half a file.
    node.write(FILL + "fill() if os.environ['RANK'] == '0' else time.sleep(3600)")
    node.plan(nproc=2, max_restarts=1000, start=start)
    assert node.run() == 198
    said = node.console().partition("disk-full: ")[2]
    assert f"the disk at {disk.path} is full: 0 bytes" in said
    assert "largest in the run folder: filler (" in said
    assert not node.rank(attempt=1).exists(), "another attempt would find the same disk"
    assert disk.leftovers() == []
