"""Recorders of all ranks, joined: who is missing, and what differs."""

from typing import Any

import pytest

from launcher.verdict.collectives import join_recorders

NOW = 1_000_000_100.0


def entry(seq: int, op: str = "all_reduce", **fields: Any) -> dict[str, Any]:
    """As torch 2.13 writes it."""
    return {
        "collective_seq_id": seq,
        "profiling_name": f"gloo:{op}",
        "process_group": ["0", "default_pg"],
        "input_sizes": [[1_048_576]],
        "input_dtypes": ["Float"],
        "is_p2p": False,
        "state": "scheduled",
        "retired": True,
        "time_created_ns": int((NOW - 94) * 1e9),
        **fields,
    }


def trace(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {}, "entries": list(entries), **fields}


def steps(*sizes: int) -> dict[str, Any]:
    """A rank that made calls of these sizes and waits in the last."""
    calls = [entry(seq, input_sizes=[[size]]) for seq, size in enumerate(sizes, 1)]
    calls[-1]["retired"] = False
    return trace(*calls)


def test_the_rank_that_has_not_entered_a_collective_is_named():
    waits = trace(entry(811), entry(812, retired=False))
    found = join_recorders(
        {rank: trace(entry(811)) if rank == 5 else waits for rank in range(8)}, NOW
    )
    (finding,) = found
    assert finding.text == (
        "rank 5 has not entered all_reduce 812 (4.0 MiB, group default), all others wait since 94 s"
    )
    assert (finding.kind, finding.ranks, finding.seq, finding.op) == (
        "missing",
        (5,),
        812,
        "all_reduce",
    )


def test_of_two_calls_that_others_wait_in_the_earlier_one_is_missed():
    waits = trace(entry(811), entry(812, retired=False), entry(813, "barrier", retired=False))
    (finding,) = join_recorders({0: waits, 1: trace(entry(811)), 2: waits}, NOW)
    assert finding.text.startswith("rank 1 has not entered all_reduce 812 ")


def test_a_rank_without_a_recorder_is_not_taken_for_missing():
    assert join_recorders({0: trace(entry(1, retired=False)), 1: {}}, NOW) == ()


def test_where_ranks_stand_in_the_code_is_told_with_what_they_are_in():
    places = {0: "train.py:30", 1: "train.py:34"}
    calls = (entry(40, retired=False), entry(40, "barrier", retired=False))
    (finding,) = join_recorders(dict(enumerate(map(trace, calls))), NOW, places=places)
    assert finding.text == (
        "ranks 0-1 are in different collectives: all_reduce 40 at train.py:30 (rank 0) "
        "and barrier 40 at train.py:34 (rank 1)"
    )


def test_a_rank_that_had_ended_made_fewer_steps_where_the_others_repeat_themselves():
    def after(steps: int) -> list[tuple[str, tuple[int, ...]]]:
        calls = [entry(seq) for seq in range(1, steps)] + [entry(steps, retired=False)]
        found = join_recorders({0: trace(*calls)}, NOW, places={0: "train.py:8"}, left=(1,))
        return [(finding.text, finding.ranks) for finding in found]

    told = "rank 1 made fewer steps: it had ended before all_reduce 4, which rank 0 has entered"
    assert after(4) == [(f"{told} at train.py:8 as in each step before", (1,))]
    assert after(1) == []


def test_the_first_difference_counts_where_later_ones_follow():
    first = trace(entry(3, "broadcast"), entry(4, retired=False))
    second = trace(entry(3), entry(4, "all_gather", retired=False))
    (finding,) = join_recorders({0: first, 1: second, 2: second}, NOW)
    assert (finding.seq, finding.ranks) == (3, (0,))


def test_types_that_differ_are_told():
    traces = {
        r: trace(entry(3, retired=False, input_dtypes=[t])) for r, t in enumerate(("Float", "Long"))
    }
    assert join_recorders(traces, NOW)[0].text.endswith("Float on rank 0, Long on rank 1")


def test_of_different_calls_the_rarer_one_is_blamed_and_the_rarest_kind_of_rank():
    usual = trace(entry(1), entry(2), entry(3, retired=False))
    odd = trace(entry(1), entry(2), entry(3, "barrier", retired=False, input_sizes=[]))
    for traces, ranks in (
        ((usual, odd), (1,)),
        ((odd, usual), (0,)),
        ((odd, odd, usual), (2,)),
        ((usual, odd, odd, usual, usual), (1, 2)),
    ):
        (finding,) = join_recorders(dict(enumerate(traces)), NOW)
        assert (finding.kind, finding.ranks, finding.seq) == ("different", ranks, 3)
        assert finding.waited_s == pytest.approx(94.0)
    named = {"process_group": ["2", "dp"], "retired": False}
    calls = (entry(3, **named), entry(3, "barrier", **named), entry(3, **named))
    (finding,) = join_recorders(dict(enumerate(map(trace, calls))), NOW)
    assert finding.text == (
        "ranks 0-2 are in different collectives of group dp: "
        "all_reduce 3 (ranks 0, 2) and barrier 3 (rank 1)"
    )


def test_the_size_of_what_is_awaited_is_told_by_shapes_and_types():
    for sizes, dtypes, told in (
        ([[3, 2], [4]], ["Double", "Half"], "(56 bytes, group default)"),
        ([[3, 2], [4]], ["Unknown"], "(10 bytes, group default)"),
        ([[]], ["Long"], "(8 bytes, group default)"),
        ([], [], "(group default)"),
    ):
        waits = trace(entry(8, retired=False, input_sizes=sizes, input_dtypes=dtypes))
        (finding,) = join_recorders({0: waits, 3: trace(), 1: waits, 4: trace()}, NOW)
        assert finding.text == (
            f"ranks 3-4 have not entered all_reduce 8 {told}, all others wait since 94 s"
        )
    sized = (trace(entry(2, retired=False, input_sizes=one)) for one in ([[2, 1500], []], [[2]]))
    (finding,) = join_recorders(dict(enumerate(sized)), NOW, places={1: "train.py:3"})
    told = "2 x 1,500 + 1 on rank 0, 2 on rank 1 at train.py:3"
    assert finding.text == f"sizes differ in all_reduce 2: {told}"
    gathered = (trace(entry(2, "gather", retired=False, input_sizes=[[n]])) for n in (1, 2))
    assert join_recorders(dict(enumerate(gathered)), NOW) == (), "these may be of any size"


def test_findings_come_with_the_gravest_first_and_each_group_waits_for_itself():
    def waits(group: str, seq: int, since_s: float, op: str = "all_reduce") -> dict[str, Any]:
        at = int((NOW - since_s) * 1e9)
        named = {"process_group": [group, "undefined"], "retired": False, "time_created_ns": at}
        return entry(seq, op, **named)

    config = {"pg_config": {name: {"ranks": [0, 1]} for name in "1234"}}
    first = trace(
        waits("1", 5, 9), waits("2", 5, 60), waits("3", 5, 3), waits("4", 5, 0.9), **config
    )
    second = trace(waits("3", 5, 3, "barrier"), **config)
    found = join_recorders({0: first, 1: second}, NOW)
    assert [(one.kind, one.group, round(one.waited_s)) for one in found] == [
        ("different", "3", 3),
        ("missing", "2", 60),
        ("missing", "1", 9),
    ]
    late = join_recorders({0: first, 1: second}, NOW, waits_s=10.0)
    assert [(one.kind, one.group) for one in late] == [("different", "3"), ("missing", "2")]
    soon = join_recorders({0: first, 1: second}, NOW, waits_s=0.0)
    assert [one.group for one in soon] == ["3", "2", "1", "4"]
    done = trace(waits("1", 5, 9) | {"state": "completed"}, waits("2", 5, 9) | {"is_p2p": True})
    assert join_recorders({0: done, 1: trace()}, NOW) == ()
    odd = trace(waits("1", 5, 9), pg_config={"1": {"ranks": "[0, 1"}})
    assert join_recorders({0: odd, 1: trace()}, NOW) == (), "its members are not known"


def test_a_step_shows_what_was_left_out_only_with_the_two_calls_before_it():
    for one, other, kind in (
        ((1, 8, 4, 2, 8, 4, 2), (1, 8, 4, 2, 8, 4, 8), "missing"),
        ((4, 8, 4, 8), (4, 8, 4, 4), "sizes"),
        ((8, 4, 8), (8, 4, 4), "sizes"),
        ((8, 4, 2, 8), (8, 4, 2, 4), "sizes"),
        ((8, 8), (8, 4), "sizes"),
    ):
        for traces in ((one, other, one), (other, one, one)):
            found = join_recorders({r: steps(*sizes) for r, sizes in enumerate(traces)}, NOW)
            assert [finding.kind for finding in found] == [kind], (one, other)
    late = {0: steps(8, 4, 8, 4, 8), 1: steps(8, 4, 8, 4, 4), 2: steps(8, 4, 8, 4, 4)}
    named = {0: "a.py:1", 1: "b.py:2", 2: "c.py:3"}
    (finding,) = join_recorders(late, NOW, places=named)
    assert (finding.ranks, finding.seq) == ((1, 2), 5)
    assert finding.text == "ranks 1-2 have left out all_reduce 5 at a.py:1"


def test_groups_are_joined_each_for_itself():
    named = {"process_group": ["1", "dp"], "retired": False}
    config = {"pg_config": {"1": {"name": "1", "desc": "dp", "ranks": "[0, 1]"}}}
    waits = trace(entry(7), entry(9, **named), **config)
    found = join_recorders({0: waits, 1: trace(entry(7), **config), 2: trace(entry(7))}, NOW)
    assert [(finding.group, finding.ranks) for finding in found] == [("dp", (1,))]
    assert "rank 0 waits since 94 s" in found[0].text


def test_what_has_lasted_as_long_as_the_limit_is_told():
    def found(since_s: float, waits_s: float, *, differs: bool) -> list[str]:
        at = int((NOW - since_s) * 1e9)
        waits = entry(8, retired=False, time_created_ns=at)
        other = trace(entry(8, "barrier", time_created_ns=at)) if differs else trace()
        return [
            one.kind for one in join_recorders({0: trace(waits), 1: other}, NOW, waits_s=waits_s)
        ]

    for since_s, waits_s, missing, different in (
        (0.5, 1.0, [], []),
        (1.0, 1.0, ["missing"], ["different"]),
        (0.5, 0.5, ["missing"], ["different"]),
        (9.5, 10.0, [], ["different"]),
        (10.0, 10.0, ["missing"], ["different"]),
    ):
        assert found(since_s, waits_s, differs=False) == missing
        assert found(since_s, waits_s, differs=True) == different


def test_what_is_no_trace_tells_nothing():
    odd: list[dict[str, Any]] = [
        {"entries": "text"},
        {"entries": [1, None, {}, {"profiling_name": 3, "process_group": 4}]},
        {"missing": "torch 2.4 has no recorder here"},
    ]
    assert join_recorders(dict(enumerate(odd)), NOW) == ()


def paced(seqs: range, late_s: float, step_s: float = 1.0) -> dict[str, Any]:
    """A rank that comes so late to each collective."""
    at = ((NOW - 90 + seq * step_s + late_s) * 1e9 for seq in seqs)
    return trace(*(entry(seq, time_created_ns=int(ns)) for seq, ns in zip(seqs, at, strict=True)))


def test_a_rank_for_which_the_others_wait_again_and_again_is_slow():
    # Recorders hold the last collectives, not the same ones everywhere.
    traces = {rank: paced(range(1 + rank, 41), 0.4 if rank == 2 else 0.01) for rank in range(4)}
    (finding,) = join_recorders(traces, NOW)
    assert (finding.kind, finding.ranks) == ("slow", (2,))
    assert finding.text == (
        "rank 2 is slow: the others wait 40% of the time, in 37 collectives of 36.0 s"
    )
    ahead = {0: paced(range(40), 0.0), 1: paced(range(40), 60.0)}  # a clock that is a minute ahead
    assert join_recorders(ahead, NOW) == ()
    assert join_recorders({rank: paced(range(40), 0.05 * rank) for rank in range(4)}, NOW) == ()
    for calls, late_s, step_s, others in (
        (20, 0.4, 1.0, 1),
        (19, 0.4, 1.0, None),
        (20, 0.02, 0.05, None),
        (20, 0.04, 0.06, 1),
        (20, 0.25, 1.0, None),
        (20, 0.31, 1.0, 1),
        (20, 0.9, 1.0, 1),
        (20, 0.96, 1.0, None),
    ):
        two = {0: paced(range(calls), 0.0, step_s), 1: paced(range(calls), late_s, step_s)}
        found = join_recorders(two, NOW)
        assert [one.ranks for one in found] == ([(1,)] if others else []), (calls, late_s, step_s)
    assert join_recorders({0: paced(range(40), 0.4)}, NOW) == ()
    pair = {rank: paced(range(40), 0.4 * (rank > 1)) for rank in range(4)}
    (finding,) = join_recorders(pair, NOW)
    assert finding.text.startswith("ranks 2-3 are slow: the others wait 41% of the time, in 40 ")
    assert join_recorders({r: paced(range(40), 0.4 * (r > 1)) for r in range(5)}, NOW) == ()
