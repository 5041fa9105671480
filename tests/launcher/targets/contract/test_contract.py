"""The targets that need nothing but this machine keep the contract."""

from __future__ import annotations

from launcher.api.choose_target import ROOMS
from tests.launcher.targets.contract.benches import BENCHES, on
from tests.launcher.targets.contract.contract import TargetContract


def test_every_target_that_the_launcher_starts_nodes_on_keeps_the_contract() -> None:
    assert ROOMS.keys() - {"starter"} <= BENCHES.keys()


@on("local", "toy")
class TestHere(TargetContract):
    """By processes."""
