from __future__ import annotations

from pathlib import Path

from fabric_train.agreement import Agreement

PROGRAM = Path(__file__).parent / "programs" / "agreeing.py"


def test_alone_one_agrees_with_oneself():
    agreement = Agreement(2)
    assert agreement.settle() == (0, 0)
    agreement.propose((0, 5))
    assert agreement.settle() == (0, 5)
    assert agreement.settle() == (0, 0)


def test_all_ranks_learn_the_highest_wish_at_the_same_call(processes, finish):
    code, out, err = finish(processes.start_torchrun(2, str(PROGRAM)))
    assert code == 0, err
    heard = [(0, 0), (0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (0, 5)]
    assert out.strip() == f"{heard} True"
