"""Recorders of all ranks, joined: who is missing, and what differs."""

from __future__ import annotations

from typing import Any

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


def test_the_rank_that_has_not_entered_a_collective_is_named() -> None:
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


def test_a_rank_that_has_entered_no_collective_yet_is_missing_too() -> None:
    (finding,) = join_recorders({0: trace(entry(1, retired=False)), 1: trace()}, NOW)
    assert finding.ranks == (1,)


def test_a_rank_without_a_recorder_is_not_taken_for_missing() -> None:
    assert join_recorders({0: trace(entry(1, retired=False)), 1: {}}, NOW) == ()


def test_ranks_in_different_collectives_are_told() -> None:
    found = join_recorders(
        {0: trace(entry(40, retired=False)), 1: trace(entry(40, "broadcast", retired=False))}, NOW
    )
    assert [finding.kind for finding in found] == ["different"]
    assert found[0].text == (
        "ranks 0-1 are in different collectives: all_reduce 40 (rank 0) and broadcast 40 (rank 1)"
    )


def test_where_ranks_stand_in_the_code_is_told_with_what_they_are_in() -> None:
    places = {0: "train.py:30", 1: "train.py:34"}
    calls = (entry(40, retired=False), entry(40, "barrier", retired=False))
    (finding,) = join_recorders(dict(enumerate(map(trace, calls))), NOW, places=places)
    assert finding.text == (
        "ranks 0-1 are in different collectives: all_reduce 40 at train.py:30 (rank 0) "
        "and barrier 40 at train.py:34 (rank 1)"
    )


def test_a_rank_that_had_ended_made_fewer_steps_where_the_others_repeat_themselves() -> None:
    def after(steps: int) -> list[tuple[str, tuple[int, ...]]]:
        calls = [entry(seq) for seq in range(1, steps)] + [entry(steps, retired=False)]
        found = join_recorders({0: trace(*calls)}, NOW, places={0: "train.py:8"}, left=(1,))
        return [(finding.text, finding.ranks) for finding in found]

    told = "rank 1 made fewer steps: it had ended before all_reduce 4, which rank 0 has entered"
    assert after(4) == [(f"{told} at train.py:8 as in each step before", (1,))]
    assert after(1) == []


def test_sizes_that_differ_are_told_with_the_ranks_that_have_them() -> None:
    def gathers(rank: int) -> dict[str, Any]:
        sizes = [[1000]] if rank == 7 else [[1024]]
        return trace(entry(17, "all_gather", retired=False, input_sizes=sizes))

    (finding,) = join_recorders({rank: gathers(rank) for rank in range(8)}, NOW)
    assert finding.text == "sizes differ in all_gather 17: 1,024 on ranks 0-6, 1,000 on rank 7"
    assert finding.ranks == (7,)


def test_the_first_difference_counts_where_later_ones_follow() -> None:
    first = trace(entry(3, "broadcast"), entry(4, retired=False))
    second = trace(entry(3), entry(4, "all_gather", retired=False))
    (finding,) = join_recorders({0: first, 1: second, 2: second}, NOW)
    assert (finding.seq, finding.ranks) == (3, (0,))


def test_a_rank_that_has_left_one_out_is_told_by_what_came_next_in_earlier_steps() -> None:
    def steps(*sizes: int) -> dict[str, Any]:
        calls = [entry(seq, input_sizes=[[size]]) for seq, size in enumerate(sizes, 1)]
        calls[-1]["retired"] = False
        return trace(*calls)

    (finding,) = join_recorders({0: steps(8, 4, 8, 4, 8), 1: steps(8, 4, 8, 4, 4)}, NOW)
    assert finding.text == "rank 1 has left out all_reduce 5"
    (finding,) = join_recorders({0: steps(8, 4, 8, 4, 8), 1: steps(8, 4, 8, 4, 5)}, NOW)
    assert finding.kind == "sizes"


def test_types_that_differ_are_told() -> None:
    traces = {
        r: trace(entry(3, retired=False, input_dtypes=[t])) for r, t in enumerate(("Float", "Long"))
    }
    assert join_recorders(traces, NOW)[0].text.endswith("Float on rank 0, Long on rank 1")


def test_groups_are_joined_each_for_itself() -> None:
    named = {"process_group": ["1", "dp"], "retired": False}
    config = {"pg_config": {"1": {"name": "1", "desc": "dp", "ranks": "[0, 1]"}}}
    waits = trace(entry(7), entry(9, **named), **config)
    found = join_recorders({0: waits, 1: trace(entry(7), **config), 2: trace(entry(7))}, NOW)
    assert [(finding.group, finding.ranks) for finding in found] == [("dp", (1,))]
    assert "rank 0 waits since 94 s" in found[0].text


def test_ranks_that_only_just_wait_are_nothing_to_tell() -> None:
    just = entry(8, retired=False, time_created_ns=int((NOW - 0.2) * 1e9))
    assert join_recorders({0: trace(just), 1: trace()}, NOW) == ()


def test_what_is_no_trace_tells_nothing() -> None:
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


def test_a_rank_for_which_the_others_wait_again_and_again_is_slow() -> None:
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
