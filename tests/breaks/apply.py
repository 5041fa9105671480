"""Deliberate faults: each file beside this one lists breaks of one room, and who should catch them.

A break is a hunk of a patch without line numbers, so it follows its code when the code moves.
``make breaks`` puts one after the other into a copy of the project and runs the room's tests there.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 5
"""Lines that one break may take out, and that it may put in."""


@dataclass(frozen=True, kw_only=True)
class Break:
    """One fault. ``sees`` is what a user would see; ``tests`` are narrow to wide, space-separated
    arguments of pytest each: the first that fails has caught it."""

    name: str
    file: str
    sees: str
    old: str
    new: str
    tests: tuple[str, ...]
    in_ci: bool

    def apply(self, root: Path) -> None:
        """Changes the file below ``root``; ``ValueError`` unless its lines are there just once."""
        path = root / self.file
        text = path.read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} holds its lines {count} times, not once")
        path.write_text(text.replace(self.old, self.new))


def read_breaks() -> tuple[Break, ...]:
    """All breaks, in the order of their files' names. Raises ``ValueError`` for a malformed one."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        room = yaml.safe_load(path.read_text())
        found += [_parse(one, room["tests"]) for one in room["breaks"]]
    names = [one.name for one in found]
    if len(set(names)) != len(names):
        raise ValueError("two breaks have one name")
    return tuple(found)


def _parse(one: dict[str, str | bool], tests_of_room: str) -> Break:
    lines = str(one["change"]).splitlines(keepends=True)
    strange = [line for line in lines if line[0] not in " -+"]
    counts = [sum(line[0] == sign for line in lines) for sign in "-+"]
    if strange or not any(counts) or max(counts) > MOST_LINES:
        raise ValueError(f"{one['name']}: a change is 1 to {MOST_LINES} lines with -, + or a blank")
    return Break(
        name=str(one["name"]),
        file=str(one["file"]),
        sees=str(one["sees"]),
        old="".join(line[1:] for line in lines if line[0] in " -"),
        new="".join(line[1:] for line in lines if line[0] in " +"),
        tests=tuple(dict.fromkeys(filter(None, (str(one.get("tests", "")), tests_of_room)))),
        in_ci=bool(one.get("in_ci", False)),
    )


def copy_project(to: Path) -> None:
    """Puts what git tracks or would track into ``to``, and leads to the same environment."""
    ask = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    (to / ".venv").symlink_to(ROOT / ".venv")
