"""What the pure part must not touch; what the agent may import is in test_layers.py."""

import ast

import pytest

from launcher.agent import membership
from tests.launcher.test_layers import imports_of, modules, nodes_of, path_of
from tests.launcher.values import by_place, changeable, records_of

ROOM = "agent.membership."
PURE = {f"{ROOM}{name}" for name in ("group", "decisions")}
FOR_PURE_CODE = {"__future__", "collections", "dataclasses", "enum", "json", "math", "typing"}
FOR_PURE_CODE |= {"functools", "itertools", "launcher"}


def foreign(module: str) -> set[str]:
    """The packages that a module imports anywhere."""
    plain = {
        a.name for n in nodes_of(path_of(module)) if isinstance(n, ast.Import) for a in n.names
    }
    found = {n.module or "" for n in nodes_of(path_of(module)) if isinstance(n, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | found}


@pytest.mark.parametrize("module", sorted(PURE))
def test_the_pure_part_imports_neither_torch_nor_threads_nor_time(module):
    assert foreign(module) <= FOR_PURE_CODE
    ours = {name for name in imports_of(module) if name.startswith(ROOM)}
    assert ours <= PURE
    assert "contract.clock" not in imports_of(module)


def test_events_and_what_is_told_are_values_and_only_the_state_is_not():
    events = {"Gone", "Close", "Admit", "Heals", "Generation", "TakeGeneration", "Refuse", "Tell"}
    told = {"Member", "Last", "Rules", "Membership", "Join", "Announcement", "CoordinatorProcess"}
    state = {"GroupStatus", "GroupState", "Peer", "Coordinator"}
    assert {kind.__name__ for kind in records_of(membership)} == events | told | state
    assert changeable(membership) == state
    by_name = {"Rules", "GroupStatus", "GroupState", "Membership"}
    by_name |= {"Admit", "TakeGeneration", "Announcement", "CoordinatorProcess"}
    assert by_place(membership) == (events | told | state) - by_name


@pytest.mark.parametrize("module", [one for one in modules() if one.startswith(ROOM)])
def test_no_module_of_membership_names_a_wall_clock(module):
    named = {node.attr for node in nodes_of(path_of(module)) if isinstance(node, ast.Attribute)}
    assert not named & {"wall", "time", "now", "utcnow", "ctime"}
    assert not foreign(module) & {"time", "datetime"}
