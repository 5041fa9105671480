"""Whether a launcher follows a node, as the node's keeper sees it."""

import multiprocessing
import os
import time
from pathlib import Path

from launcher.contract import protocol
from launcher.targets.hosts.program.node_state import (
    is_followed,
    is_node_followed,
    mark_followed,
)


def mark_for(run_dir: Path, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        mark_followed(run_dir, 0)


def test_a_node_counts_as_followed_in_the_middle_of_a_mark_too(tmp_path):
    folder = tmp_path / protocol.NODES_DIR / "0"
    folder.mkdir(parents=True)
    assert not is_node_followed(folder)
    mark_followed(tmp_path, 0)
    marking = multiprocessing.get_context("fork").Process(target=mark_for, args=(tmp_path, 1.0))
    marking.start()
    looks = 0
    while marking.is_alive():
        assert is_node_followed(folder)
        looks += 1
    marking.join()
    assert looks > 100
    assert not is_node_followed(folder, limit_s=0.0)


def test_a_node_is_followed_for_ten_seconds_after_its_launcher_was_heard(tmp_path):
    folder = tmp_path / protocol.NODES_DIR / "0"
    folder.mkdir(parents=True)
    mark_followed(tmp_path, 0)
    # A mark of another boot lies ahead.
    for ago_s, followed in ((9.5, True), (10.0, False), (-9.5, False)):
        heard_ns = time.monotonic_ns() - int(ago_s * 1e9)
        os.utime(folder / protocol.FOLLOWED_FILE, ns=(heard_ns, heard_ns))
        assert (is_node_followed(folder), is_followed(tmp_path)) == (followed, followed)
