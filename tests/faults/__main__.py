"""``python -m tests.faults``: lists, splits, records and places faults.

list                    the open ones, each with its true cause, and how many are held out
split NAME ...          the part that each name belongs to
record NAME ... | KIND  makes these anew, or all real ones of a kind, and keeps what they leave
place ROWS.yaml LOGS    puts each row, and LOGS/NAME or LOGS/NAME.log, into the part it belongs to
"""

import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.faults import corpus, making
from tests.faults.corpus import Fault

ROW = re.compile(r"^(?=[a-z0-9][a-z0-9-]*:)", re.MULTILINE)


def main(words: list[str]) -> int:
    match words:
        case ["list"]:
            for fault in corpus.read_faults("open"):
                print(f"{fault.name:40} {fault.made:10} {fault.cause:28} {fault.done}")
            print(f"and {len(corpus.read_faults('held_out'))} that are held out")
        case ["split", *names]:
            for name in names:
                print(f"{name}: {corpus.part_of(name).name}")
        case ["record", *names] if names:
            return make(making.record, real_ones(names))
        case ["compare", *names] if names:
            return make(
                making.compare, [one for one in real_ones(names) if one.made == "processes"]
            )
        case ["place", rows, logs]:
            place(Path(rows), Path(logs))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def real_ones(words: list[str]) -> list[Fault]:
    """Those of these names and kinds."""
    known = [*corpus.read_faults("open"), *corpus.read_faults("held_out")]
    return [one for one in known if one.is_real and (one.name in words or one.made in words)]


def make(how: Callable[[Fault, Path], None], faults: list[Fault]) -> int:
    """1 if one could not be made."""
    failed = 0
    for fault in faults:
        with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
            try:
                how(fault, Path(folder))
                print(f"{fault.name}: {how.__name__} done", flush=True)
            except Exception:
                failed = 1
                print(f"{fault.name}: not made\n{traceback.format_exc()}", flush=True)
    return failed


def place(rows: Path, logs: Path) -> None:
    """Rows keep their text. A row or log that is there already is replaced."""
    for row in ROW.split(rows.read_text())[1:]:
        name = row.partition(":")[0]
        part = corpus.part_of(name)
        file = part / rows.name
        kept = ROW.split(file.read_text() if file.exists() else "")
        others = [one for one in kept if one.strip() and not one.startswith(f"{name}:")]
        file.write_text("\n".join(one.strip("\n") + "\n" for one in [*others, row]))
        for made in (logs / name, logs / f"{name}.log"):
            target = corpus.unpack(part) / made.name
            if made.is_dir():
                shutil.copytree(made, target, dirs_exist_ok=True)
            elif made.exists():
                shutil.copy(made, target)
        corpus.pack(part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
