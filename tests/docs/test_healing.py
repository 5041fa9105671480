"""The page on healing says of each strategy what its class says."""

import re
from importlib import import_module
from pathlib import Path

from fabric_train.strategies import STRATEGIES
from fabric_train.strategies.ddp import DdpSpawn

PAGE = Path(__file__).parents[2] / "docs/healing.md"


def read_table() -> dict[str, bool]:
    (table,) = re.findall(r"\n\| `--strategy` \|.*\n\|-.*\n((?:\|.*\n)+)", PAGE.read_text("utf-8"))
    found = {}
    for row in table.splitlines():
        names, heals, why = (cell.strip() for cell in row.strip("|").split("|"))
        assert bool(why) == (heals == "no"), row
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", names), heals == "yes")
    return found


def test_the_table_of_strategies_says_what_the_classes_say():
    told = read_table()
    assert set(told) == set(STRATEGIES)
    for name, place in STRATEGIES.items():
        module, _, kind = place.partition(":")
        strategy = getattr(import_module(f"fabric_train.strategies.{module}"), kind)
        # Its workers start processes, which train in one world.
        heals = strategy.heals and not issubclass(strategy, DdpSpawn)
        assert told[name] == heals, name
