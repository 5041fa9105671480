"""The targets that need an engine keep the contract: each where its engine is there."""

from tests.launcher.targets.contract.benches import on
from tests.launcher.targets.contract.contract import TargetContract


@on("docker", "hosts", "slurm", "kubernetes")
class TestEngines(TargetContract):
    """By real containers, machines, a Slurm cluster, and pods that are containers."""
