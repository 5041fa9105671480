"""A full disk under a node: told as what it is, and never the end of who tells it."""

import pytest

from tests.disks import mounted
from tests.launcher.agent.place import free_port
from tests.launcher.agent.test_full_disk import FILL, disk, node


@pytest.mark.mount
def test_a_disk_that_is_full_before_the_start_ends_the_node(node, disk):
    node.write("print('never')")
    node.plan()
    disk.fill()
    assert node.run() == 198
    assert "No space left on device" in node.console()
    assert disk.leftovers() == []
    assert node.stdout() == ""


@pytest.mark.mount
def test_another_full_disk_is_named_by_its_own_mount_point(node, disk):
    with mounted(disk.path.parent / "other") as other:
        node.write(FILL + f"fill({str(other.path)!r})")
        node.plan(max_restarts=1000, env=(("CHECKPOINT_DIR", str(other.path)),))
        assert node.run() == 198
        told = node.outcome()
        assert (told["cause"], told["first"]["cause"]) == ("disk-full", "disk-full")
        assert f"the disk at {other.path} is full: 0 bytes" in told["detail"]


@pytest.mark.mount
def test_a_group_that_cannot_be_numbered_names_the_disk_of_the_checkpoints(place, disk):
    place.write("print('never')")
    disk.fill()
    place.plan(
        port=free_port(),
        env=(("CHECKPOINT_DIR", str(disk.path)),),
        conf=(("fence_dir", str(disk.path)),),
    )
    assert place.run() == 198, place.console()
    assert place.outcome()["cause"] == "disk-full"
    assert f"the disk at {disk.path} is full" in place.outcome()["detail"]
