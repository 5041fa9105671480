"""Whether a launcher follows a node, as the node's keeper sees it."""

import multiprocessing
import time
from pathlib import Path

from launcher.contract import protocol
from launcher.targets.hosts.program.node_state import is_node_followed, mark_followed


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
