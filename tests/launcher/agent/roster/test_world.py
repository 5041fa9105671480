"""The pure machine in a simulated world: single stories, then random ones."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from launcher.agent.roster.settings import Rules
from tests.launcher.agent.roster.simulation import Node, World

LIMIT_S = 5.0
limited = partial(Rules, detection_limit_s=LIMIT_S)
FENCED = limited(min_nodes=1, max_nodes=4, fence_dir="shared", last_call_s=1.0)
BY_MAJORITY = limited(min_nodes=1, max_nodes=5, last_call_s=1.0)


def formed(rules: Rules, *indexes: int, seed: int = 0) -> tuple[World, list[Node]]:
    world = World(rules, seed)
    nodes = [world.add(index) for index in indexes]
    world.until(lambda: world.together(*nodes), 5)
    return world, nodes


def ranks(nodes: list[Node]) -> list[int]:
    return [node.running.rank if node.running else -1 for node in nodes]


def test_ranks_follow_the_node_index_whoever_comes_first() -> None:
    _, nodes = formed(FENCED, 3, 0, 2, 1)
    assert ranks(nodes) == [3, 0, 2, 1]


def test_a_full_group_seals_without_waiting_for_the_last_call() -> None:
    world = World(FENCED)
    nodes = [world.add(index) for index in range(4)]
    assert world.until(lambda: world.together(*nodes), 5) < 0.5


def test_the_last_call_waits_after_the_last_who_came() -> None:
    world = World(FENCED)
    first = world.add(0)
    world.run(0.9)
    second = world.add(1)
    world.until(lambda: world.together(first, second), 1.5)


def test_fewer_than_min_nodes_wait_and_then_time_out() -> None:
    world = World(limited(min_nodes=2, max_nodes=2, join_timeout_s=20, fence_dir="shared"))
    node = world.add(0)
    world.until(lambda: node.refused is not None, 25)
    assert node.refused is not None
    assert node.refused.kind == "timeout"
    assert "1 of at least 2 nodes are here" in node.refused.text


@pytest.mark.parametrize("limit_s", [1.0, 5.0])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_node_is_replaced_by_a_smaller_group_within_a_second_of_the_limit(
    lost: int, limit_s: float
) -> None:
    rules = limited(min_nodes=1, max_nodes=4, fence_dir="shared", detection_limit_s=limit_s)
    world, nodes = formed(rules, 0, 1, 2)
    nodes[lost].kill()
    rest = [n for n in nodes if not n.dead]
    assert world.until(lambda: world.together(*rest), 10) <= limit_s + 1.0
    assert world.counts() == {"lost": 1}


def test_a_neighbourhood_that_goes_dark_at_once_is_noticed_in_about_two_limits() -> None:
    rules = limited(min_nodes=1, max_nodes=32, fence_dir="shared")
    world, nodes = formed(rules, *range(32))
    for node in nodes[4:24]:
        node.kill()
    rest = [n for n in nodes if not n.dead]
    assert world.until(lambda: world.together(*rest), 20) <= 2.2 * LIMIT_S
    assert world.counts() == {"lost": 1}


def test_a_frozen_node_that_wakes_rejoins_as_a_newcomer() -> None:
    world, nodes = formed(FENCED, 0, 1, 2)
    nodes[0].freeze()
    world.until(lambda: world.together(*nodes[1:]), LIMIT_S + 1)
    nodes[0].wake()
    world.until(lambda: world.together(*nodes), 3)
    assert ranks(nodes) == [0, 1, 2]
    assert world.counts() == {"lost": 1, "joined": 1}


def test_a_freeze_shorter_than_the_limit_changes_nothing() -> None:
    world, nodes = formed(FENCED, 0, 1, 2)
    nodes[1].freeze()
    world.run(0.8 * LIMIT_S)
    nodes[1].wake()
    world.run(2 * LIMIT_S)
    assert world.together(*nodes)
    assert world.counts() == {}


@pytest.mark.parametrize("seed", range(5))
def test_a_store_that_froze_for_long_is_no_loss_of_nodes(seed: int) -> None:
    world, nodes = formed(FENCED, 0, 1, 2, seed=seed)
    world.store_frozen_until = world.now + 3 * LIMIT_S
    world.run(5 * LIMIT_S)
    assert world.together(*nodes)
    assert world.counts() == {}


def test_a_woken_node_is_back_in_the_round_that_could_not_do_without_it() -> None:
    world, nodes = formed(limited(min_nodes=2, max_nodes=2, fence_dir="shared"), 0, 1)
    nodes[1].freeze()
    world.run(3 * LIMIT_S)
    assert nodes[0].joining
    nodes[1].wake()
    world.until(lambda: world.together(*nodes), 3)


def test_a_node_struck_off_while_it_waits_takes_a_fresh_seat() -> None:
    world, nodes = formed(limited(min_nodes=3, max_nodes=3, fence_dir="shared"), 0, 1, 2)
    nodes[0].kill()
    world.until(lambda: all(n.joining for n in nodes[1:]), LIMIT_S + 2)
    follower = next(n for n in nodes[1:] if not n.state.leads)
    follower.freeze()
    world.run(2 * LIMIT_S)
    follower.wake()
    replacement = world.add(0)
    world.until(lambda: world.together(replacement, *nodes[1:]), 5)


def test_the_first_to_come_may_die_before_the_first_membership() -> None:
    world = World(limited(min_nodes=2, max_nodes=4, fence_dir="shared", last_call_s=1.0))
    first = world.add(0)
    world.run(1)
    first.kill()
    nodes = [world.add(1), world.add(2)]
    world.until(lambda: world.together(*nodes), LIMIT_S + 3)


def test_a_worker_fault_is_counted_once_for_the_whole_group() -> None:
    world, nodes = formed(FENCED, 0, 1, 2)
    for node in nodes:
        node.rejoin()
    world.run(2)
    assert world.together(*nodes)
    assert world.counts() == {"fault": 1}


def test_a_fault_that_followed_from_a_lost_node_is_counted_as_the_loss() -> None:
    world, nodes = formed(FENCED, 0, 1, 2)
    nodes[1].kill()
    rest = [nodes[0], nodes[2]]
    for node in rest:
        node.rejoin(0.1)
    world.until(lambda: world.together(*rest), LIMIT_S + 1)
    assert world.counts() == {"lost": 1}


def test_more_faults_than_max_restarts_close_the_run_for_all() -> None:
    rules = limited(min_nodes=1, max_nodes=2, fence_dir="shared", max_restarts=2, faults_before=1)
    world, nodes = formed(rules, 0, 1)
    nodes[0].rejoin()
    world.until(lambda: world.together(*nodes), 3)
    nodes[1].rejoin()
    world.until(lambda: all(n.refused for n in nodes), 3)
    assert all("restarts-exhausted" in n.refused.text for n in nodes if n.refused)


def test_losses_and_growth_never_use_up_max_restarts() -> None:
    rules = limited(min_nodes=1, max_nodes=3, fence_dir="shared", max_restarts=0, growth_pause_s=0)
    world, nodes = formed(rules, 0, 1, 2)
    for _ in range(3):
        nodes[2].kill()
        world.until(lambda: world.together(*nodes[:2]), LIMIT_S + 1)
        nodes[2] = world.add(2)
        world.until(lambda: world.together(*nodes), 3)
    assert world.counts() == {"lost": 3, "joined": 3}


def test_a_node_that_leaves_is_gone_at_once_and_nobody_waits_for_the_limit() -> None:
    for leaver in range(3):
        world, nodes = formed(FENCED, 0, 1, 2)
        nodes[leaver].leave()
        rest = [n for n in nodes if n is not nodes[leaver]]
        assert world.until(lambda w=world, r=rest: w.together(*r), LIMIT_S) < 1.0
        assert world.counts() == {"left": 1}


def test_more_nodes_than_max_wait_without_disturbing_and_step_in() -> None:
    rules = limited(min_nodes=1, max_nodes=2, fence_dir="shared", join_timeout_s=10)
    world, nodes = formed(rules, 0, 1)
    standby = [world.add(2), world.add(3)]
    world.run(60)
    assert world.together(*nodes)
    assert not [n for n in standby if n.refused]
    nodes[0].kill()
    world.until(lambda: world.together(nodes[1], standby[0]), LIMIT_S + 1)
    assert world.counts() == {"lost": 1}
    nodes[1].kill()
    world.until(lambda: world.together(*standby), LIMIT_S + 1)


def test_several_newcomers_come_in_one_round() -> None:
    world, nodes = formed(FENCED, 0, 1)
    nodes += [world.add(2), world.add(3)]
    world.until(lambda: world.together(*nodes), 3)
    assert world.counts() == {"joined": 1}


def test_newcomers_that_come_and_go_cannot_keep_the_group_from_training() -> None:
    rules = limited(min_nodes=1, max_nodes=4, fence_dir="shared", growth_pause_s=30)
    world, nodes = formed(rules, 0, 1)
    for index in range(2, 12):
        guest = world.add(index)
        world.run(1)
        guest.leave()
        world.run(5)
    world.until(lambda: world.together(*nodes), 5)
    assert world.counts().get("joined", 0) <= 3


def test_held_newcomers_that_come_one_by_one_come_in_together_after_the_pause() -> None:
    rules = limited(
        min_nodes=1, max_nodes=8, fence_dir="shared", admit_limit_s=120, growth_pause_s=30
    )
    world, nodes = formed(rules, 0, 1)
    for index in range(2, 8):
        nodes.append(world.add(index))
        for _ in range(30):
            world.run(0.1)
            # As for a training that is not asked for a commit.
            if (head := nodes[0].state.head) and head.newcomers:
                nodes[0].admit()
    assert world.counts() == {"joined": 1}, "the first one's"
    world.until(lambda: bool(nodes[0].state.head and nodes[0].state.head.newcomers), 31)
    nodes[0].admit()
    world.until(lambda: world.together(*nodes), 5)
    assert world.counts() == {"joined": 2}


def test_held_newcomers_wait_for_the_commit_but_not_for_ever() -> None:
    rules = limited(min_nodes=1, max_nodes=4, fence_dir="shared", admit_limit_s=30)
    world, nodes = formed(rules, 0, 1)
    late = world.add(2)
    world.run(20)
    assert world.together(*nodes)
    assert nodes[1].state.head is not None
    assert nodes[1].state.head.newcomers == 1
    assert world.until(lambda: world.together(*nodes, late), 15) >= 5


def test_a_commit_on_any_node_admits_held_newcomers() -> None:
    rules = limited(min_nodes=1, max_nodes=4, fence_dir="shared", admit_limit_s=120)
    world, nodes = formed(rules, 0, 1)
    late = world.add(2)
    world.run(2)
    nodes[1].admit()
    world.until(lambda: world.together(*nodes, late), 3)


def test_a_restarted_agent_takes_its_index_over_without_waiting_for_the_limit() -> None:
    world, nodes = formed(FENCED, 0, 1, 2)
    victim = next(n for n in nodes if not n.state.leads)
    victim.kill()
    again = world.add(victim.state.index)
    rest = [n for n in nodes if not n.dead]
    assert world.until(lambda: world.together(*rest, again), LIMIT_S) < 3.0


def test_a_woken_node_whose_place_was_taken_stops_with_the_reason() -> None:
    world, nodes = formed(FENCED, 0, 1)
    nodes[1].freeze()
    world.until(lambda: world.together(nodes[0]), LIMIT_S + 1)
    instead = world.add(1)
    world.until(lambda: world.together(nodes[0], instead), 3)
    nodes[1].wake()
    world.until(lambda: nodes[1].refused is not None, 5)
    assert nodes[1].refused is not None
    assert nodes[1].refused.kind == "replaced"
    assert "node_index 1" in nodes[1].refused.text
    world.run(10)
    assert world.together(nodes[0], instead)


def test_without_fencing_a_minority_does_not_go_on() -> None:
    world, nodes = formed(BY_MAJORITY, 0, 1, 2)
    nodes[0].kill()
    world.until(lambda: world.together(*nodes[1:]), LIMIT_S + 1)
    nodes[1].kill()
    world.run(60)
    assert not nodes[2].running
    nodes.append(world.add(1))
    world.run(30)
    assert not nodes[2].running, "one of two is no majority, whoever else comes"


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("min_nodes", [1, 2])
def test_without_fencing_two_nodes_wait_for_the_one_that_is_lost(lost: int, min_nodes: int) -> None:
    world, nodes = formed(limited(min_nodes=min_nodes, max_nodes=2), 0, 1)
    nodes[lost].kill()
    world.run(60)
    left = nodes[1 - lost]
    assert not left.running, "one of two might meet another group"
    instead = world.add(lost)
    world.until(lambda: world.together(left, instead), 3)
    assert world.counts() == {"lost": 1}, "no restart is used up"


def test_without_fencing_a_group_goes_on_that_leaves_too_few_for_another() -> None:
    world, nodes = formed(limited(min_nodes=2, max_nodes=5), 0, 1, 2, 3)
    nodes[0].kill()
    nodes[1].kill()
    world.run(30)
    assert not nodes[2].running
    left = [*nodes[2:], world.add(0)]
    world.run(30)
    assert not nodes[2].running, "3 of 5 leave 2 for another group"
    left.append(world.add(4))
    world.until(lambda: world.together(*left), 3)


def test_without_fencing_those_who_left_on_purpose_need_not_be_outvoted() -> None:
    world, nodes = formed(BY_MAJORITY, 0, 1)
    nodes[0].leave()
    world.until(lambda: world.together(nodes[1]), LIMIT_S)


def test_under_a_new_store_the_majority_of_the_membership_before_is_needed() -> None:
    rules = limited(min_nodes=1, max_nodes=5, nodes_before=4, last_call_s=1, join_timeout_s=30)
    world = World(rules)
    two = [world.add(0), world.add(1)]
    world.run(20)
    assert not [n for n in two if n.running]
    three = [*two, world.add(2)]
    world.until(lambda: world.together(*three), 3)


def test_a_closed_run_refuses_all_who_ask_and_leaves_the_running_alone() -> None:
    world, nodes = formed(FENCED, 0, 1, 2)
    nodes[0].close("finished")
    world.run(2)
    late = world.add(3)
    world.run(2)
    assert late.refused is not None
    assert late.refused.kind == "closed"
    assert nodes[1].running
    nodes[0].close("failed")
    world.until(lambda: nodes[1].refused is not None, 2)


def test_a_node_that_never_joined_can_close_the_run() -> None:
    world = World(FENCED)
    first = world.add(0, joins=False)
    world.run(1)
    first.close("finished")
    world.run(1)
    late = world.add(1)
    world.until(lambda: late.refused is not None, 2)


def test_a_leader_whose_shared_storage_hangs_gives_the_lead_away() -> None:
    world, nodes = formed(FENCED, 0, 1, 2)
    leader = next(n for n in nodes if n.state.leads)
    leader.storage_hangs = True
    leader.rejoin()
    world.until(lambda: world.together(*nodes), 2 * LIMIT_S)
    assert not leader.state.leads


# -- random schedules ----------------------------------------------------------------------------
MOVES = st.one_of(
    st.tuples(st.just("join"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["kill", "freeze", "wake", "leave", "fault"]), st.integers(0, 7)),
    st.tuples(st.just("wait"), st.floats(0.01, 8.0)),
)


LEAVES_AS_IT_JOINS = [
    ("wait", 7.5),
    ("join", 3),
    ("join", 0),
    ("wait", 5.504580943954523),
    ("leave", 3),
    ("kill", 2),
    ("join", 3),
    ("wait", 5.5),
    ("leave", 1),
]
"""A node joins with a new seat while the beat of its old one is on its way."""


def play(world: World, moves: list[tuple[str, float]]) -> None:
    for move, value in moves:
        alive, frozen = world.alive(), [n for n in world.nodes if n.frozen and not n.dead]
        pick = alive[int(value) % len(alive)] if alive else None
        if move == "wait":
            world.run(value)
        elif move == "join" and int(value) not in [n.state.index for n in alive]:
            world.add(int(value))
        elif move == "wake" and frozen:
            frozen[int(value) % len(frozen)].wake()
        elif pick and move == "fault":
            pick.rejoin()
        elif pick and move in ("kill", "freeze", "leave") and len(alive) > 1:
            getattr(pick, move)()
        world.run(0.05)


def settled(world: World) -> bool:
    """All live nodes run together, or as many as there is room for while the others wait."""
    alive = world.alive()
    running = [n for n in alive if n.running]
    expected = min(len(alive), world.rules.max_nodes)
    return len(running) == expected and world.together(*running)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    moves=st.lists(MOVES, min_size=1, max_size=14),
    seed=st.integers(0, 2**16),
    delay_s=st.sampled_from([0.002, 0.05, 0.4]),
    spare=st.integers(0, 2),
)
def test_after_any_schedule_all_live_nodes_are_in_one_membership(
    moves: list[tuple[str, float]], seed: int, delay_s: float, spare: int
) -> None:
    rules = limited(min_nodes=1, max_nodes=4 - spare, fence_dir="shared", last_call_s=1.0)
    world = World(rules, seed, delay_s)
    world.add(0)
    play(world, moves)
    for node in world.nodes:
        if node.frozen and not node.dead:
            node.wake()
    world.run(0.1)
    if world.alive():
        world.until(lambda: settled(world), 90)
        world.run(20)
        assert settled(world), "and they stay together"


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    moves=st.lists(MOVES.filter(lambda m: m[0] in ("join", "wait", "fault")), max_size=14),
    seed=st.integers(0, 2**16),
    delay_s=st.sampled_from([0.002, 0.2, 0.8]),
)
def test_no_live_node_is_ever_dropped_while_delays_stay_below_the_limit(
    moves: list[tuple[str, float]], seed: int, delay_s: float
) -> None:
    world = World(FENCED, seed, delay_s)
    world.add(0)
    play(world, moves)
    world.run(20)
    assert not {"lost", "left", "replaced"} & set(world.counts())


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(moves=st.lists(MOVES, min_size=3, max_size=14), seed=st.integers(0, 2**16))
@example(moves=LEAVES_AS_IT_JOINS, seed=318)
def test_without_fencing_no_two_memberships_ever_run_apart_from_the_frozen(
    moves: list[tuple[str, float]], seed: int
) -> None:
    world = World(BY_MAJORITY, seed, 0.05)
    world.add(0)
    world.add(1)
    world.add(2)
    play(world, moves)
    world.run(20)
    assert len({n.running.epoch for n in world.alive() if n.running}) <= 1
