"""The example loops go on when a node is lost, and print the losses of an undisturbed run.

Compared are all losses that node 0 prints, to their last digit: its one process makes every step,
with two ranks, alone, and with two ranks again.
"""

import re
from pathlib import Path

import pytest

from tests.launcher.agent.conftest import end
from tests.launcher.agent.group import kill
from tests.launcher.agent.healing import HealingGroup
from tests.launcher.agent.place import LIMIT_S, Place
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[4] / "examples"
NAMES = ("heal_ddp.py", "heal_fabric.py")
LAST = """int(LAST.read_text() if LAST.exists() else "100000")"""


def read_example(name: str) -> str:
    """The example, which ends after the step that a file names."""
    source = (EXAMPLES / name).read_text()
    assert "STEPS = 1000" in source
    assert "< STEPS" in source
    source = source.replace("STEPS = 1000", 'from pathlib import Path; LAST = Path("last-step")')
    return source.replace("< STEPS", f"< {LAST}")


def start(folder: Path, archive: Path, source: str, last: int | None = None) -> HealingGroup:
    folder.mkdir()
    group = HealingGroup([Place(folder, archive, index) for index in range(2)], source)
    if last:
        finish_at(group, last)
    for place in group.places:
        group.start(place)
    return group


def finish_at(group: HealingGroup, step: int) -> None:
    (group.folder / "new").write_text(str(step))
    (group.folder / "new").rename(group.folder / "last-step")


def wait_for_end(*places: Place) -> None:
    for place in places:
        assert place.process is not None
        assert place.process.wait(LIMIT_S) == 0, place.console()


def worlds(place: Place) -> list[str]:
    """The sizes of the groups that node 0's first process was in."""
    return re.findall(r"(?:rank \d+ of|world size) (\d+)", place.stdout())


def losses(place: Place) -> list[str]:
    return re.findall(r"step \d+ loss .+\n", place.stdout())


def has_gone_on(place: Place, sizes: list[str]) -> bool:
    """Whether node 0 has made steps in the last of these groups."""
    lines = place.stdout().splitlines()
    return worlds(place) == sizes and any("loss" in line for line in lines[-1:])


@pytest.mark.parametrize("name", NAMES)
def test_an_example_loop_goes_on_and_prints_the_losses_of_an_undisturbed_run(
    tmp_path, archive, name
):
    source = read_example(name)
    group = start(tmp_path / "lost", archive, source)
    first, second = group.places
    try:
        wait_until(lambda: len(losses(first)) >= 20)
        kill(second)
        wait_until(lambda: has_gone_on(first, ["2", "1"]))
        second = group.start_again(second)
        wait_until(lambda: has_gone_on(first, ["2", "1", "2"]))
        last = len(losses(first)) + 60
        finish_at(group, last)
        wait_for_end(first, second)
        alone = start(
            tmp_path / "undisturbed", archive, source.replace("sleep(0.02)", "sleep(0)"), last
        )
        group.places += alone.places
        wait_for_end(*alone.places)
    finally:
        for place in group.places:
            end(place)
    assert [int(line.split()[1]) for line in losses(first)] == [*range(1, last + 1)]
    assert losses(first) == losses(alone.places[0])
    assert worlds(alone.places[0]) == ["2"]
    assert [event["event"] for event in first.events()].count("workers-started") == 1


@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_at_most_six_lines_of_this_project(name):
    lines = (EXAMPLES / name).read_text().splitlines()
    own = [line for line in lines if re.search(r"  # heal\b", line)]
    assert 0 < len(own) <= 6
    named = [line for line in lines if re.search(r"fabric_train|\b[Ww]orlds\b|\bworld[.:]", line)]
    assert named == own
