"""Who belongs to the group, decided from events alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.agent.membership import decisions
from launcher.agent.membership.decisions import (
    Admit,
    Close,
    Event,
    Generation,
    Gone,
    Refuse,
    TakeGeneration,
    Tell,
)
from launcher.agent.membership.group import NONE, GroupState, Join, Last, Member, RoundCause, Rules

LIMIT_S = 60.0
CAUSES = {"lose": RoundCause.LOST, "leave": RoundCause.LEFT, "finish": RoundCause.FINISHED}


def node(index: int, life: str = "a", workers: int = 1) -> Member:
    return Member(f"{index}.{life}", "127.0.0.1", 1000 + index, 2000 + index, workers)


class Run:
    """A group, its clock, and what it asked for and refused."""

    def __init__(self, least: int, most: int, *, fenced: bool = False, **given: Any) -> None:
        given = {"last_call_s": 2.0, "growth_pause_s": 0.0} | given
        fence_dir = "/shared" if fenced else ""
        rules = Rules(min_nodes=least, max_nodes=most, fence_dir=fence_dir, **given)
        self.group, self.now, self.taken = GroupState(rules=rules, phase_at=10.0), 10.0, 0
        self.refused = list[Refuse]()

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
        self.group, actions = decisions.step(self.group, events, self.now)
        for action in actions:
            if isinstance(action, Refuse):
                self.refused.append(action)
            elif isinstance(action, TakeGeneration):
                self.taken += 1
                self._act([Generation(self.taken)])

    @property
    def ranks(self) -> list[int]:
        """The node indexes of the sealed membership, in order of rank; empty while one forms."""
        return [m.node_index for m in self.group.members] if self.group.sealed else []


# -- stories ---------------------------------------------------------------------------------------
STORIES = """
3:3 | a full group is sealed at once, and ranks follow the plan
    join 2 0, ranks, join 1, ranks 0 1 2, generation 1, cause first
2:4 last_call_s=4 | more nodes than the least are waited for until the last call is over
    join 0 1, after 3.5, join 3, ranks, after 3.5, ranks, after 0.5, ranks 0 1 3
3:3 | a node that waits too long is refused once
    join 0, after 20, join 1, after 39.5, refused, after 0.5, refused 0a-timeout, after 19.5,
    refused 0a-timeout, after 0.5, refused 0a-timeout 1a-timeout, after 5,
    refused 0a-timeout 1a-timeout
2:3 | a node that goes before the first seal is not waited for
    join 0 1, lose 1, after 5, ranks, join 2, after 2, ranks 0 2
2:2 | a group of fixed size waits for the lost node's successor
    join 0 1, lose 1, join 0, after 20, ranks, join 1b, ranks 0 1, cause lost, refused
2:3 | a worker's fault is a loss where a node was lost, and counts where none was
    join 0 1 2, join 0, cause fault, lose 1, join 2, ranks 0 2, cause lost, faults 0, join 0 2,
    ranks 0 2, cause fault, faults 1
1:3 fenced=1 | only who works in the group changes why it forms again, and what a majority is
    join 0 1, after 2, join 2, leave 2, majority_of 2, ranks 0 1, join 0, lose 2, cause fault,
    lose 1, cause lost, majority_of 1, ranks 0
2:2 max_restarts=0 | where no restart is allowed the first fault closes the run
    join 0 1, join 0 1, closed restarts-exhausted
2:2 max_restarts=1 | one fault more than allowed closes the run
    join 0 1, join 0 1, ranks 0 1, faults 1, join 1 0, closed restarts-exhausted,
    refused 1a-closed 0a-closed
2:4 fenced=1 join_timeout_s=90 | a member that is slow to stop is left out, and comes in later
    join 0 1 2 3, lose 3, join 0 1, after 59, ranks, join 0 1, after 1.1, ranks 0 1, join 2,
    admit, join 0 1, ranks 0 1 2
1:3 growth_pause_s=10 | newcomers come in together once the group has committed
    join 0, admit, after 2.1, admit, ranks 0, join 1 2, ranks 0, newcomers 2, admit, ranks,
    newcomers 0, cause joined, join 0, ranks 0 1 2
1:3 growth_pause_s=10 | newcomers are announced some time after the last
    join 0, after 2.1, join 1, admit, join 0, ranks 0 1, join 2, after 9.5, newcomers 0, after 0.5,
    newcomers 1, lose 2, newcomers 0, join 3, newcomers 1, close failed, newcomers 0
1:3 fenced=1 | a member that is lost while newcomers are let in is why the group forms again
    join 0 1, after 2.1, join 2, admit, cause joined, join 0, ranks, lose 1, cause lost, ranks 0 2
1:2 fenced=1 | a full group takes nobody, and waiting beside it has no limit
    join 0 1, join 2, after 500, newcomers 0, ranks 0 1, join 0, refused, join 1, ranks 0 1, refused
1:4 | a node that leaves on purpose costs no majority and comes in no more
    join 0 1 2 3, leave 3 2, join 0, join 2, after 59, ranks, join 1, ranks 0 1, cause left, refused
3:3 | of two nodes with one index the later one waits
    join 0, join 0b, refused 0a-replaced, join 1 2, ranks 0 1 2, refused 0a-replaced
1:3 fenced=1 | a group heals while it is formed and all that work in it have said that they do
    join 0 1, heal 0, after 2, heals False, heal 1, heals True, join 2, heals True, lose 1,
    heals False, join 0, ranks 0 2, heals False, heal 2, heals True
2:2 | a node of the same index replaces the one before, which is told each time that it asks
    join 0 1, join 1b, refused 1a-replaced, cause replaced, join 0, ranks 0 1, join 1,
    refused 1a-replaced 1a-replaced, ranks 0 1
1:3 | a run is over when all have finished; nobody is let in, and who has finished may go
    join 0 1, after 2.1, finish 0, join 2, after 100, ranks 0 1, newcomers 0, lose 0, ranks 0 1,
    finish 1, closed finished, refused 2a-closed
2:3 | who finishes counts once, no more for the majority, and its place is taken
    join 0 1 2, finish 0 0, finished 1, majority_of 2, room 2, cause first
2:3 join_timeout_s=90 | where some have finished and the others were lost, their successors may come
    join 0 1 2, after 50, finish 0, lose 1 2, after 89.5, closed, after 0.5, closed stranded
2:3 join_timeout_s=90 | who is at work may be slow to stop
    join 0 1 2, finish 0, lose 1, after 100, closed, lose 2, closed stranded
2:3 fenced=1 | those that have not finished go on if they may still be enough
    join 0 1 2, finish 0, lose 1, join 2, ranks, join 1b, ranks 1 2
2:2 | else they are stranded
    join 0 1, finish 0, lose 1, closed stranded
1:2 | where enough have finished, losses do not matter
    join 0 1, finish 0, lose 1, closed finished
1:1 | a run that was closed before it began takes nobody
    close failed, join 0, ranks, refused 0a-closed
1:1 | a failure overrules the end of those that had finished, and nothing a failure
    join 0, finish 0, closed finished, close fenced, closed finished, close failed, closed failed,
    close finished, closed failed, join 3, refused 3a-closed
"""
"""The least and most nodes and more rules, what the story shows, and what happens."""


def stories() -> Iterator[Any]:
    for story in re.split(r"\n(?=\S)", STORIES.strip()):
        head, *steps = story.splitlines()
        rules, _, shows = head.partition(" | ")
        yield pytest.param(rules.split(), " ".join(map(str.strip, steps)), id=shows)


@pytest.mark.parametrize(("rules", "steps"), list(stories()))
def test_the_group_follows_each_story(rules, steps):
    least, most = map(int, rules[0].split(":"))
    more = (one.split("=") for one in rules[1:])
    run = Run(least, most, **{name: float(value) for name, value in more})
    for word, *words in map(str.split, steps.split(", ")):
        names = [f"{one}.a" if one.isdigit() else f"{one[0]}.{one[1:]}" for one in words]
        match word:
            case "join":
                for name in names:
                    run.join(int(name[0]), life=name[2:])
            case "lose" | "leave" | "finish":
                run.see(*(Gone(name, CAUSES[word]) for name in names))
            case "heal":
                run.see(*(decisions.Heals(name) for name in names))
            case "admit":
                run.see(Admit())
            case "close":
                run.see(Close(words[0]))
            case "after":
                run.see(after_s=float(words[0]))
            case "ranks":
                assert [str(index) for index in run.ranks] == words, steps
            case "refused":
                assert [f"{one.name.replace('.', '')}-{one.kind}" for one in run.refused] == words
            case _:
                assert str(getattr(run.group, word)) == " ".join(words), (word, steps)


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
    run.see(*(Gone(f"{index}.a", RoundCause.LOST) for index in range(left, most)))
    run.join(*range(left)).see(after_s=59.0)
    assert bool(run.ranks) is goes_on


@pytest.mark.parametrize(
    ("rules", "members", "limit_s", "why"),
    [
        ((2, 3), 0, 5.0, "within 5 s: 1 of at least 2 nodes are here"),
        ((1, 3), 0, 0.5, "within 0.5 s"),
        (
            (1, 4),
            4,
            60.0,
            "within 60 s: no majority of the last 4 nodes is here (1), and no shared checkpoint "
            "folder fences the run",
        ),
    ],
)
def test_who_waits_in_vain_is_told_what_is_missing(rules, members, limit_s, why):
    run = Run(*rules).join(*range(members))
    run.see(*(Gone(f"{index}.a", RoundCause.LOST) for index in range(1, members)))
    run.join(0, limit_s=limit_s).see(after_s=limit_s)
    (refused,) = run.refused
    assert refused == Refuse("0.a", "timeout", f"no membership was formed {why}")


def test_a_fenced_group_takes_a_generation_for_each_membership():
    run = Run(2, 2, fenced=True).join(0, 1)
    assert (run.ranks, run.group.generation, run.taken) == ([0, 1], 1, 1)
    assert run.join(0, 1).group.generation == 2
    run = Run(2, 2, fenced=True)
    run.see(*(Join(node(index), LIMIT_S, Last(3, 2)) for index in (0, 1)))
    assert (run.group.generation, run.taken) == (4, 4), "a later one than that of the last group"


def test_where_no_generation_can_be_taken_all_that_wait_are_told_why():
    run = Run(2, 2, fenced=True)
    group, _ = decisions.step(run.group, [Join(node(0), LIMIT_S)], 0.0)
    group, actions = decisions.step(group, [Join(node(1), LIMIT_S)], 0.0)
    assert actions == (TakeGeneration(),)
    assert decisions.step(group, [], 1.0)[1] == (), "it is asked for once"
    group, actions = decisions.step(group, [Generation(0, "no space")], 2.0)
    assert [(one.name, one.kind, one.text) for one in actions if isinstance(one, Refuse)] == [
        ("0.a", "state", "no space"),
        ("1.a", "state", "no space"),
    ]


def test_a_coordinator_that_was_left_behind_takes_no_stale_fault_for_the_end_of_the_run():
    """It stood still, and a member had said that its group broke before it went elsewhere."""
    run = Run(2, 2, fenced=True, max_restarts=0).join(0, 1)
    faults = [Join(node(index), LIMIT_S, Last(1, 2)) for index in (0, 1)]
    group, actions = decisions.step(run.group, faults, run.now)
    assert (actions, group.closed) == ((TakeGeneration(),), ""), "whoever takes it looks first"
    assert decisions.step(group, [Close("fenced")], run.now)[0].closed == "fenced"
    assert decisions.step(group, [Generation(2)], run.now)[0].closed == "restarts-exhausted"


# -- another coordinator ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("here", "after_s", "sealed"),
    [
        ((0, 1, 2, 3, 4), 0.0, True),
        ((0, 1, 2, 3), 1.5, False),
        ((0, 1, 2, 3), 2.0, True),
        ((0, 1, 2, 3, 6, 7, 8, 9), 0.0, True),
        ((0, 1, 2), 50.0, False),
        ((0, 1, 2, 6, 7), 50.0, False),
    ],
)
def test_another_coordinator_waits_for_all_but_the_last_one_s_host_and_needs_a_majority(
    here, after_s, sealed
):
    """Of six, beside one that has finished; the nodes from 6 on are newcomers."""
    run = Run(1, 9, last_call_s=9.0)
    for index in here:
        run.see(Join(node(index), LIMIT_S, Last(7, 6, 2, 1) if index < 6 else NONE))
    run.see(after_s=after_s)
    assert bool(run.ranks) is sealed
    told = run.group.generation, run.group.faults, run.group.finished
    assert told == (8 if sealed else 7, 2, 1)


def test_nodes_that_were_not_in_the_last_membership_make_no_majority_of_it():
    run = Run(1, 6).join(0, 1, 2).see(after_s=2.1)
    run.see(Gone("1.a", RoundCause.LOST), Gone("2.a", RoundCause.LOST)).join(0)
    run.see(*(Join(node(index), LIMIT_S, Last(1, 2)) for index in (3, 4)))
    assert run.see(after_s=20.0).ranks == [], "the others were in another first group"


def test_a_coordinator_that_was_left_behind_learns_it_from_a_node_of_the_other_group():
    run = Run(1, 4).join(0, 1, 2, 3)
    run.see(*(Gone(f"{index}.a", RoundCause.LOST) for index in (1, 2, 3)))
    run.join(0).see(Join(node(1, "b"), LIMIT_S, Last(2, 3)))
    assert run.group.closed == "fenced"


def test_a_member_that_missed_the_seal_is_told_again_and_that_is_no_fault():
    run = Run(2, 2).join(0, 1)
    group, actions = decisions.step(run.group, [Join(node(1), LIMIT_S)], run.now)
    assert (group.sealed, actions) == (True, (Tell(frozenset({"1.a"})),))
    group, _ = decisions.step(run.group, [Join(node(1), LIMIT_S, Last(1, 2))], run.now)
    assert (group.sealed, group.cause) == (False, RoundCause.FAULT)


# -- any history -----------------------------------------------------------------------------------
MOST = 4
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
        elif kind != "tick" and (kind != "finish" or f"{index}.{life}" in before.working()):
            run.see(Gone(f"{index}.{life}", CAUSES[kind]))
        check_step(before, run.group)
    if not (run.group.closed or run.group.finished):
        run.see(
            *(Gone(name, RoundCause.LOST) for name in (*run.group.waiting, *run.group.working()))
        )
        for _ in range(2):
            run.join(*(i for i in range(MOST) if f"{i}.new" not in run.group.waiting), life="new")
            run.see(after_s=40.0).see(Admit())
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
    if before.members and not after.rules.fence_dir:
        # Nobody else can be a majority of the last membership, or enough without it.
        parted = {
            name
            for name, why in after.gone.items()
            if why in (RoundCause.LEFT, RoundCause.FINISHED)
        }
        counted = {member.name for member in before.members} - parted
        others = after.rules.max_nodes - len(names)
        assert 2 * len(counted & names) > len(counted) or others < after.rules.min_nodes
