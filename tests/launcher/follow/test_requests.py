"""Requests to the launcher that follows a run, as files in its folder."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

import launcher.follow
from launcher.contract.errors import InputError
from launcher.follow.loop import is_out_of_sight
from launcher.follow.requests import (
    check_scale,
    count_nodes,
    count_returned,
    forget_stop,
    is_stop_requested,
    is_to_be_kept,
    read_withdrawn,
    request_scale,
    request_stop,
    take_scale_request,
    without,
    write_size,
)
from launcher.follow.table import render_columns
from launcher.follow.target import Target, Traits
from launcher.plan.target_settings import TargetSettings
from launcher.runs.folder import RunFolder
from tests.launcher.follow.test_next_step import RUNS, observe
from tests.launcher.values import by_place, changeable


def test_a_stop_is_asked_for_and_withdrawn(tmp_path):
    run = RunFolder(tmp_path)
    assert (is_stop_requested(run), is_to_be_kept(run)) == (False, False)
    for keep in (True, False):
        request_stop(run, keep=keep)
        assert (is_stop_requested(run), is_to_be_kept(run)) == (True, keep)
    for _ in range(2):
        forget_stop(run)
        assert not is_stop_requested(run)


def test_a_size_is_asked_for_once_and_remembered(tmp_path, make_plan):
    run, plan = RunFolder(tmp_path), make_plan(nnodes="1:4", engine="agent")
    assert (take_scale_request(run), count_returned(run)) == (None, 0)
    assert read_withdrawn(run, plan) == frozenset()
    for nodes, withdrawn, returned in ((2, {2, 3}, 0), (3, {3}, 1), (1, {1, 2, 3}, 1), (4, {}, 4)):
        path = request_scale(run, nodes)
        assert take_scale_request(run) == nodes
        assert (path.exists(), take_scale_request(run)) == (False, None)
        assert read_withdrawn(run, plan) == frozenset(withdrawn)
        assert count_returned(run) == returned
    write_size(run, 2)
    seen = without(observe(RUNS, 0, 137, RUNS), read_withdrawn(run, plan))
    assert [node.node_index for node in seen.nodes] == [0, 1]
    request_scale(run, 3).write_text('{"nodes": "many"}')
    assert take_scale_request(run) is None


@pytest.mark.parametrize(
    ("fields", "nodes", "said"),
    [
        ({"nnodes": "2:4"}, 2, ""),
        ({"nnodes": "2:4"}, 4, ""),
        ({"nnodes": "2:4"}, 1, "1 node asked for, but nnodes of digits-0a1b2c is 2:4"),
        (
            {"nnodes": "2:4"},
            5,
            "a number from 2 to 4; other bounds need a new run (--resume d",
        ),
        ({"nnodes": 2}, 2, "has a fixed number of nodes, or runs under plain torchrun"),
        ({"nnodes": "2:4", "engine": "torchrun"}, 2, "has a fixed number of nodes, or runs under"),
    ],
)
def test_only_a_size_within_the_bounds_is_accepted(fields, nodes, said, make_plan):
    plan = make_plan(**{"engine": "agent", **fields})
    if not said:
        check_scale(plan, nodes)
        return
    with pytest.raises(InputError) as caught:
        check_scale(plan, nodes)
    assert said in str(caught.value)
    own = SimpleNamespace(keeps_nodes="another launcher")
    with pytest.raises(InputError, match="keeps its nodes\n  fix: another launcher"):
        check_scale(replace(plan, own=cast(TargetSettings, own)), nodes)
    if "asked" in said:
        with pytest.raises(InputError, match="for other bounds launcher stop digits-0a1b2c, then"):
            check_scale(plan, nodes, own_checkpoints=True)


def test_numbers_of_nodes_and_columns_are_rendered_for_a_person():
    assert [*map(count_nodes, range(3))] == ["0 nodes", "1 node", "2 nodes"]
    assert render_columns([("a", "bcd", ""), ("ef", "g", "h")]) == ["a   bcd", "ef  g    h"]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        render_columns([("a", "b"), ("c",)])


def test_only_a_target_that_sees_other_machines_can_tell_of_a_run_from_elsewhere(
    tmp_path, monkeypatch
):
    for elsewhere, sees, told in (
        (True, True, False),
        (True, False, True),
        (False, True, False),
        (False, False, False),
    ):
        monkeypatch.setattr(RunFolder, "is_elsewhere", elsewhere)
        target = SimpleNamespace(traits=Traits(sees_other_machines=sees))
        assert is_out_of_sight(RunFolder(tmp_path), cast(Target, target)) == told


def test_what_was_seen_or_decided_cannot_be_changed():
    assert (changeable(launcher.follow), by_place(launcher.follow)) == (set(), set())
