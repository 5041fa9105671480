from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "saving.py"


# -- several ranks ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_what_one_world_saved_another_size_resumes_to_the_bit(processes, finish, tmp_path, kind):
    walk(processes, finish, tmp_path, kind, ((2, 3), (1, 3)))


def walk(processes, finish, tmp_path, kind, worlds):
    """Every world begins with the very weights and moments that the one before it ended with."""
    folder = str(tmp_path / "checkpoints")
    digest = "fresh"
    for workers, steps in worlds:
        started = processes.fork(str(PROGRAM), folder, kind, str(steps), ranks=workers)
        code, out, err = finish(started)
        assert code == 0, err
        began, ended = (line.split() for line in out.splitlines()[-2:])
        assert began[2] == digest
        digest = ended[2]
    # The last one had nothing left to do.
    assert (began[1], began[2]) == (ended[1], ended[2])
