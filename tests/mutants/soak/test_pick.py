"""Which faults ``make mutants`` tries."""

from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, WorkItem

from tests.mutants.test_pick import mutants

OPERATORS = ("core/AddNot", "core/ReplaceComparisonOperator_Lt_Gt", "core/NumberReplacer")


def pick_from(path: Path, seed: int) -> list[tuple[tuple[int, int], str]]:
    with use_db(str(path), WorkDB.Mode.create) as database:
        for line in range(1, 13):
            for operator in (*OPERATORS, "core/ReplaceBinaryOperator_BitOr_Add"):
                fault = MutationSpec(
                    module_path=Path("room.py"), operator_name=operator, occurrence=line,
                    start_pos=(line, 0), end_pos=(line, 1),
                )  # fmt: skip
                database.add_work_item(WorkItem(job_id=f"{operator}-{line}", mutations=(fault,)))
        assert mutants.pick(database, seed, 10) == 10
        left = [item.mutations[0] for item in database.pending_work_items]
    return sorted((fault.start_pos, fault.operator_name) for fault in left)


def test_one_seed_picks_the_same_faults_each_at_another_place(tmp_path):
    first = pick_from(tmp_path / "first.sqlite", 1)
    assert first == pick_from(tmp_path / "again.sqlite", 1)
    assert first != pick_from(tmp_path / "other.sqlite", 2)
    assert len({place for place, _ in first}) == 10
    assert {operator for _, operator in first} <= set(OPERATORS)
