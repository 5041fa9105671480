from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.contract.errors import InputError
from launcher.runs.goodput import Goodput
from launcher.runs.plot import write_plot

GOODPUT = Goodput(
    wall_s=30.0,
    seconds={"productive": 24.0},
    starts=3,
    lost_steps=10,
    world=[(0.0, 0), (1.0, 2), (9.0, 0), (10.0, 1)],
    loss=[(2.0, 5, 2.0), (8.0, 20, 1.0), (12.0, 10, 1.5), (29.0, 60, 0.5)],
    failures=[9.0],
)


def test_a_run_is_drawn_as_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot("digits-1", GOODPUT, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_line_of_a_start_that_makes_steps_again_is_one_of_its_own() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from launcher.runs.plot import _draw

    assert matplotlib
    top, bottom = _draw("digits-1", GOODPUT).axes
    assert [list(line.get_ydata()) for line in top.lines[:2]] == [[2.0, 1.0], [1.5, 0.5]]
    assert list(bottom.lines[0].get_ydata()) == [0, 2, 0, 1, 0]


def test_without_matplotlib_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="pip install"):
        write_plot("digits-1", GOODPUT, tmp_path / "run.png")


def test_a_run_without_a_training_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to draw") as raised:
        write_plot("digits-1", None, tmp_path / "run.png")
    assert "protocol.py" not in raised.value.hint
    assert "leave --png out" in raised.value.hint


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="No such file"):
        write_plot("digits-1", GOODPUT, tmp_path / "absent" / "run.png")
