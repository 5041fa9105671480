"""What a run left in its folder and on the Docker engine, for tests of whole runs there."""

from typing import Any

from launcher.contract.protocol import LABEL_NODE_INDEX, LABEL_RUN_ID
from tests.launcher.runner import PREFIX, Runner

MOUNTED = PREFIX + "mounts: [./:/code:ro]\nworkdir: /code\n"
UNTIL_TOLD = """
import os, time
run = os.environ["RUN_DIR"]
open(f"{run}/up-" + os.environ["RANK"], "w").close()
while not os.path.exists(f"{run}/go"):
    time.sleep(0.05)
"""
"""Trains until a file ``go`` is in the run's folder."""


def containers(engine: Any, run_id: str, **labels: str) -> list[Any]:
    wanted = {LABEL_RUN_ID: run_id, **labels}
    filters = {"label": [f"{name}={value}" for name, value in wanted.items()]}
    found: list[Any] = engine.containers.list(all=True, filters=filters, ignore_removed=True)
    return found


def node(engine: Any, run_id: str, index: int) -> Any:
    return containers(engine, run_id, **{LABEL_NODE_INDEX: str(index)})[0]


def has(launcher: Runner, pattern: str) -> bool:
    return bool(list((launcher.folder / "runs/latest").glob(pattern)))


def remove_left(engine: Any, run_ids: list[str]) -> list[str]:
    """Removes what the engine still holds of runs; the names of it."""
    left = [container for run_id in run_ids for container in containers(engine, run_id)]
    names = [container.name for container in left]
    for container in left:
        container.remove(force=True)
    networks = [n for run_id in run_ids for n in engine.networks.list(names=[run_id])]
    for network in networks:
        network.remove()
    return names + [network.name for network in networks]
