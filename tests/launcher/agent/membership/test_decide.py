"""Who belongs to the group, decided from events alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.agent.membership import decide
from launcher.agent.membership.decide import (
    Admit,
    Close,
    Event,
    Generation,
    Gone,
    Join,
    LookFor,
    Refuse,
    TakeGeneration,
    Tell,
)
from launcher.agent.membership.group import Cause, GroupState
from launcher.agent.membership.settings import NONE, Last, Member, Rules

LIMIT_S = 60.0


def node(index: int, life: str = "a", workers: int = 1) -> Member:
    return Member(f"{index}.{life}", "127.0.0.1", 1000 + index, 2000 + index, workers)


class Run:
    """A group, its clock, and what it asked for and refused."""

    def __init__(self, least: int, most: int, *, fenced: bool = False, **given: Any) -> None:
        given = {"last_call_s": 2.0, "growth_pause_s": 0.0, "admit_limit_s": 0.25} | given
        fence_dir = "/shared" if fenced else ""
        rules = Rules(min_nodes=least, max_nodes=most, fence_dir=fence_dir, **given)
        self.group, self.now, self.taken = GroupState(rules=rules), 100.0, 0
        self.refused, self.looks = list[Refuse](), list[Member]()

    def see(self, *events: Event, after_s: float = 0.0) -> Run:
        """Each event by itself; none: the time passes."""
        self.now += after_s
        for event in events or [None]:
            self._act([event] if event else [])
        return self

    def join(self, *indexes: int, life: str = "a", limit_s: float = LIMIT_S) -> Run:
        for index in indexes:
            self.see(Join(node(index, life), limit_s, self.last_of(f"{index}.{life}")))
        return self

    def last_of(self, name: str) -> Last:
        """What a node knows that was told its membership."""
        is_member = name in [member.name for member in self.group.members]
        return Last(self.group.generation) if is_member else NONE

    def _act(self, events: list[Event]) -> None:
        self.group, actions = decide.step(self.group, events, self.now)
        for action in actions:
            if isinstance(action, Refuse):
                self.refused.append(action)
            elif isinstance(action, LookFor):
                self.looks.append(action.member)
            elif isinstance(action, TakeGeneration):
                self.taken += 1
                self._act([Generation(self.taken)])

    @property
    def ranks(self) -> list[int]:
        """The node indexes of the sealed membership, in order of rank; empty while one forms."""
        return [m.node_index for m in self.group.members] if self.group.sealed else []

    @property
    def why(self) -> list[tuple[str, str]]:
        return [(one.name, one.kind) for one in self.refused]


# -- the first round -------------------------------------------------------------------------------
def test_a_full_group_is_sealed_at_once_and_ranks_follow_the_plan():
    run = Run(3, 3).join(2, 0)
    assert run.ranks == []
    run.join(1)
    assert run.ranks == [0, 1, 2]
    assert (run.group.generation, run.group.cause) == (1, Cause.FIRST)


def test_more_nodes_than_the_least_are_waited_for_until_the_last_call_is_over():
    run = Run(2, 4).join(0, 1)
    run.see(after_s=1.9).join(3)
    assert run.ranks == []
    assert run.see(after_s=1.9).ranks == []
    assert run.see(after_s=0.2).ranks == [0, 1, 3]


def test_a_node_that_waits_too_long_is_told_how_many_are_here():
    run = Run(3, 3).join(0, 1, limit_s=10.0).see(after_s=9.9)
    assert run.refused == []
    run.see(after_s=0.2)
    assert run.why == [("0.a", "timeout"), ("1.a", "timeout")]
    assert "within 10 s: 2 of at least 3 nodes are here" in run.refused[0].text
    assert run.see(after_s=5.0).why == [("0.a", "timeout"), ("1.a", "timeout")]


def test_a_node_that_goes_before_the_first_seal_is_not_waited_for():
    run = Run(2, 3).join(0, 1)
    run.see(Gone("1.a", Cause.LOST)).see(after_s=5.0)
    assert run.ranks == []
    assert run.join(2).see(after_s=2.0).ranks == [0, 2]


# -- a loss ----------------------------------------------------------------------------------------
def test_a_group_of_fixed_size_waits_for_the_lost_node_s_successor():
    run = Run(2, 2).join(0, 1).see(Gone("1.a", Cause.LOST)).join(0)
    assert run.see(after_s=20.0).ranks == []
    assert run.join(1, life="b").ranks == [0, 1]
    assert run.group.cause is Cause.LOST


def test_a_worker_s_fault_is_a_loss_where_a_node_was_lost_and_counts_where_none_was():
    run = Run(2, 3).join(0, 1, 2).join(0)
    assert run.group.cause is Cause.FAULT
    run.see(Gone("1.a", Cause.LOST)).join(2)
    assert (run.ranks, run.group.cause, run.group.faults) == ([0, 2], Cause.LOST, 0)
    run.join(0, 2)
    assert (run.ranks, run.group.cause, run.group.faults) == ([0, 2], Cause.FAULT, 1)


def test_one_fault_more_than_allowed_closes_the_run():
    run = Run(2, 2, max_restarts=1).join(0, 1).join(0, 1)
    assert (run.ranks, run.group.faults) == ([0, 1], 1)
    run.join(1, 0)
    assert run.group.closed == "restarts-exhausted"
    assert sorted(run.why) == [("0.a", "closed"), ("1.a", "closed")]


def test_a_member_that_is_slow_to_stop_is_waited_for_and_then_left_out():
    run = Run(2, 4, fenced=True).join(0, 1, 2, 3).see(Gone("3.a", Cause.LOST))
    run.join(0, 1, limit_s=90.0)
    assert run.see(after_s=59.0).ranks == []
    assert run.see(after_s=1.1).ranks == [0, 1]
    # It comes in as a newcomer once it has stopped.
    assert run.join(2).see(after_s=3.0).join(0, 1).ranks == [0, 1, 2]


# -- newcomers and leavers -------------------------------------------------------------------------
def test_newcomers_come_in_together_once_the_group_has_committed():
    run = Run(1, 3, admit_limit_s=50.0, growth_pause_s=10.0).join(0).see(after_s=2.1)
    run.see(after_s=10.0).join(1, 2)
    assert (run.ranks, run.group.newcomers) == ([0], 2)
    run.see(Admit())
    assert (run.group.sealed, run.group.cause) == (False, Cause.JOINED)
    assert run.join(0).ranks == [0, 1, 2]


def test_newcomers_are_announced_only_some_time_after_the_last_came_in():
    run = Run(1, 3, admit_limit_s=50.0, growth_pause_s=10.0).join(0).see(after_s=2.1)
    run.join(1).see(Admit()).join(0)
    assert run.ranks == [0, 1]
    run.join(2)
    assert run.see(after_s=9.0).group.newcomers == 0
    assert run.see(after_s=1.1).group.newcomers == 1
    assert run.see(Gone("2.a", Cause.LOST)).group.newcomers == 0


def test_a_training_that_never_commits_lets_newcomers_in_after_its_limit():
    run = Run(1, 2, admit_limit_s=50.0).join(0).see(after_s=2.1).join(1)
    assert run.see(after_s=49.0).ranks == [0]
    assert run.see(after_s=1.1).group.cause is Cause.JOINED


def test_a_full_group_takes_nobody():
    run = Run(1, 2).join(0, 1).join(2)
    assert run.see(after_s=500.0).group.newcomers == 0
    assert run.ranks == [0, 1]
    assert run.refused == [], "waiting beside a running group has no limit"


def test_a_node_that_leaves_on_purpose_costs_no_majority():
    run = Run(1, 4).join(0, 1, 2, 3)
    for leaver in (3, 2):
        run.see(Gone(f"{leaver}.a", Cause.LEFT))
    assert run.join(0, 1).ranks == [0, 1]
    assert run.group.cause is Cause.LEFT


def test_a_node_of_the_same_index_replaces_the_one_before():
    run = Run(2, 2).join(0, 1).join(1, life="b")
    assert run.why == [("1.a", "replaced")]
    assert "node_index 1" in run.refused[0].text
    assert run.group.cause is Cause.REPLACED
    assert run.join(0).ranks == [0, 1]
    assert [member.name for member in run.group.members] == ["0.a", "1.b"]
    run.join(1)
    assert run.why == [("1.a", "replaced")] * 2, "it is told again, and the other stays"
    assert run.ranks == [0, 1]


# -- who may go on ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fenced", "least", "most", "left", "goes_on"),
    [
        (False, 1, 4, 3, True),
        (False, 1, 4, 2, False),
        (False, 2, 4, 3, True),
        (False, 3, 4, 3, True),
        (True, 1, 4, 1, True),
        (False, 1, 2, 1, False),
        (False, 2, 3, 2, True),
    ],
)
def test_without_a_fence_more_than_half_go_on_or_so_many_that_no_other_group_can_form(
    fenced, least, most, left, goes_on
):
    run = Run(least, most, fenced=fenced).join(*range(most))
    run.see(*(Gone(f"{index}.a", Cause.LOST) for index in range(left, most)))
    run.join(*range(left)).see(after_s=59.0)
    assert bool(run.ranks) is goes_on
    if not goes_on:
        run.see(after_s=2.0)
        assert "no majority of the last" in run.refused[0].text


def test_a_fenced_group_takes_a_generation_for_each_membership():
    run = Run(2, 2, fenced=True).join(0, 1)
    assert (run.ranks, run.group.generation, run.taken) == ([0, 1], 1, 1)
    assert run.join(0, 1).group.generation == 2


def test_where_no_generation_can_be_taken_all_that_wait_are_told_why():
    run = Run(2, 2, fenced=True)
    group, _ = decide.step(run.group, [Join(node(0), LIMIT_S)], 0.0)
    group, actions = decide.step(group, [Join(node(1), LIMIT_S)], 0.0)
    assert actions == (TakeGeneration(),)
    assert decide.step(group, [], 1.0)[1] == (), "it is asked for once"
    group, actions = decide.step(group, [Generation(0, "no space")], 2.0)
    assert [(one.name, one.kind, one.text) for one in actions if isinstance(one, Refuse)] == [
        ("0.a", "state", "no space"),
        ("1.a", "state", "no space"),
    ]


# -- another coordinator ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("here", "is_host_gone", "after_s", "sealed"),
    [
        ((0, 1, 2), False, 0.0, True),
        ((0, 1), True, 0.0, True),
        ((0, 1), False, 1.9, False),
        ((0, 1), False, 2.1, True),
        ((0,), True, 50.0, False),
    ],
)
def test_another_coordinator_waits_for_those_that_may_come_and_needs_a_majority(
    here, is_host_gone, after_s, sealed
):
    run, last = Run(1, 4), Last(7, 3, 2, host=node(2))
    for index in here:
        run.see(Join(node(index), LIMIT_S, last))
    assert run.looks == [node(2)]
    run.see(*[Gone("2.a", Cause.LOST)] * is_host_gone).see(after_s=after_s)
    assert bool(run.ranks) is sealed
    if sealed:
        assert (run.group.generation, run.group.faults) == (8, 2)


def test_nodes_that_were_not_in_the_last_membership_make_no_majority_of_it():
    run = Run(1, 6).join(0, 3, 4).see(Join(node(2), LIMIT_S, Last(1, 3)), after_s=1.0)
    assert run.see(after_s=20.0).ranks == [], "one of three is here, and three others"
    assert run.see(Join(node(1), LIMIT_S, Last(1, 3))).see(after_s=2.1).ranks


def test_a_coordinator_that_was_left_behind_learns_it_from_a_node_of_the_other_group():
    run = Run(1, 4).join(0, 1, 2, 3).see(*(Gone(f"{index}.a", Cause.LOST) for index in (1, 2, 3)))
    run.join(0).see(Join(node(1, "b"), LIMIT_S, Last(2, 3)))
    assert run.group.closed == "fenced"


def test_a_member_that_missed_the_seal_is_told_again_and_that_is_no_fault():
    run = Run(2, 2).join(0, 1)
    group, actions = decide.step(run.group, [Join(node(1), LIMIT_S)], run.now)
    assert (group.sealed, actions) == (True, (Tell(frozenset({"1.a"})),))
    group, _ = decide.step(run.group, [Join(node(1), LIMIT_S, Last(1, 2))], run.now)
    assert (group.sealed, group.cause) == (False, Cause.FAULT)


# -- the end ---------------------------------------------------------------------------------------
def test_a_run_is_over_when_all_have_finished_and_nobody_is_let_in_meanwhile():
    run = Run(1, 3).join(0, 1).see(after_s=2.1).see(Gone("0.a", Cause.FINISHED))
    run.join(2).see(after_s=100.0)
    assert (run.ranks, run.group.newcomers) == ([0, 1], 0)
    assert run.see(Gone("0.a", Cause.LOST)).ranks == [0, 1], "it matters no more"
    assert run.see(Gone("1.a", Cause.FINISHED)).group.closed == "finished"
    assert run.why == [("2.a", "closed")]


def test_those_that_have_not_finished_go_on_alone_or_are_stranded():
    run = Run(1, 3, fenced=True).join(0, 1, 2)
    run.see(Gone("0.a", Cause.FINISHED), Gone("1.a", Cause.LOST)).join(2)
    assert run.ranks == [2]
    run = Run(2, 2).join(0, 1).see(Gone("0.a", Cause.FINISHED), Gone("1.a", Cause.LOST))
    assert run.group.closed == "stranded"


def test_a_failure_overrules_the_end_of_those_that_had_finished():
    run = Run(1, 1).join(0).see(Gone("0.a", Cause.FINISHED))
    assert run.group.closed == "finished"
    assert run.see(Close("failed")).group.closed == "failed"
    assert run.see(Close("finished")).group.closed == "failed"
    assert run.join(3).why == [("3.a", "closed")]


# -- any history -----------------------------------------------------------------------------------
MOST = 4
CAUSES = {"lose": Cause.LOST, "leave": Cause.LEFT, "finish": Cause.FINISHED}
KINDS = ("join", "join", "join", "restart", "admit", "tick", *CAUSES)
HISTORIES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, MOST), st.sampled_from((0.0, 0.5, 40.0))),
    max_size=60,
)


@given(HISTORIES, st.integers(1, MOST), st.booleans())
@settings(max_examples=300, deadline=None)
def test_whatever_happens_memberships_are_whole_ordered_and_of_nodes_that_are_there(
    history, least, fenced
):
    run, lives = Run(least, MOST, fenced=fenced), dict.fromkeys(range(MOST + 1), 0)
    for kind, index, after_s in history:
        before = run.see(after_s=after_s).group
        lives[index] += kind == "restart"
        life = str(lives[index])
        if kind in ("join", "restart"):
            run.join(index, life=life, limit_s=1e9)
        elif kind == "admit":
            run.see(Admit())
        elif kind != "tick" and (kind != "finish" or before.works(f"{index}.{life}")):
            run.see(Gone(f"{index}.{life}", CAUSES[kind]))
        check_step(before, run.group)
    if not (run.group.closed or run.group.finished):
        run.see(*(Gone(name, Cause.LOST) for name in (*run.group.waiting, *run.group.working())))
        for _ in range(2):
            run.join(*(i for i in range(MOST) if f"{i}.new" not in run.group.waiting), life="new")
            run.see(after_s=40.0)
        assert run.ranks == [*range(MOST)], "all who come and do as they are told are a group"


def check_step(before: GroupState, after: GroupState) -> None:
    assert after.generation >= before.generation
    assert after.closed or not before.closed
    assert not after.waiting.keys() & after.gone.keys()
    if after.members is before.members:
        return
    assert after.generation > before.generation
    names = {member.name for member in after.members}
    indexes = [member.node_index for member in after.members]
    assert indexes == sorted(set(indexes)), "ranks follow the plan, each index once"
    assert after.rules.min_nodes <= len(names) <= after.rules.max_nodes
    assert not names & after.gone.keys()
    if before.members and not after.rules.fenced:
        # Nobody else can be a majority of the last membership, or enough without it.
        parted = {name for name, why in after.gone.items() if why in (Cause.LEFT, Cause.FINISHED)}
        counted = {member.name for member in before.members} - parted
        others = after.rules.max_nodes - len(names)
        assert 2 * len(counted & names) > len(counted) or others < after.rules.min_nodes


def test_a_thousand_nodes_that_come_at_once_are_sealed_by_one_look():
    run = Run(1000, 1000)
    run._act([Join(node(index), LIMIT_S) for index in range(1000)])
    assert len(run.ranks) == 1000
