"""The targets that need nothing but this machine keep the contract."""

from __future__ import annotations

from tests.launcher.targets.contract.benches import on
from tests.launcher.targets.contract.contract import TargetContract


@on("local", "toy")
class TestHere(TargetContract):
    """By processes."""
