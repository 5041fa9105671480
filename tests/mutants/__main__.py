"""Puts random faults into a room, one by one, and prints those that its tests do not notice.

    python tests/mutants ROOM [--seed 1] [-n 50] [--processes 2] [--tests PATH ...]

Cosmic Ray makes the faults and runs the tests; this picks which, and gives each process a copy.
Exit codes: 0 all tests ran; 2 bad arguments, or the tests fail without a fault.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

from tests.breaks.apply import ROOT, copy_project

LEAST_LIMIT_S, LIMIT_S = 20, 240
"""For one fault, four times as long as the tests take without one, within these; tests that run
longer count as having noticed it. Cosmic Ray's client of its workers waits 300 s."""
START_LIMIT_S = 60
WITHOUT_EFFECT = re.compile(
    "core/ReplaceBinaryOperator_BitOr_|"
    "core/ReplaceComparisonOperator_(Eq_Is|Is_Eq|NotEq_IsNot|IsNot_NotEq)$"
)
"""Almost every ``|`` stands in an annotation, which nothing evaluates; ``is`` and ``==`` say the
same of None, and of the short strings that Python keeps once."""


DEPTH = 3
"""Folders down to a room that has tests of its own."""
OF_NODES = re.compile(r"launcher/agent/(engine|node|worker)\b")
RUNS = [
    "tests/launcher/test_endings.py",
    "tests/launcher/targets/local",
    "tests/launcher/targets/contract/test_contract.py",
]
"""Quick tests that start real nodes, whose processes these rooms are."""


def find_tests(room: str) -> list[str]:
    """The tests of a folder; of a file, the quick ones of its folder that name its module.

    A room deeper than ``launcher/targets/kubernetes`` is tested by all of that one. Raises
    ``ValueError`` where there are no tests.
    """
    folder = ROOT / "tests" / Path(*Path(room).parts[:DEPTH])
    if (ROOT / room).is_dir() and folder.is_dir():
        return [str(folder.relative_to(ROOT)), *(RUNS if OF_NODES.match(room) else ())]
    path = Path(room)
    module = re.compile(rf"\b{re.escape('.'.join(path.with_suffix('').parts))}\b")
    tests = sorted((ROOT / "tests" / path.parent).rglob("test_*.py"))
    quick = (test for test in tests if not {"claims", "soak"} & set(test.parts))
    found = [str(test.relative_to(ROOT)) for test in quick if module.search(test.read_text())]
    if not found:
        raise ValueError(f"no test names {room}: give them with TESTS=PATH")
    return found


def pick(database: WorkDB, seed: int, count: int) -> int:
    """Leaves ``count`` faults to be tried, each at another place of the room; returns how many.

    A comparison has ten faults and an ``and`` one: places are picked first, then a fault of each.
    """
    places: dict[tuple[object, ...], list[str]] = {}
    for item in database.work_items:
        (fault,) = item.mutations
        place = (str(fault.module_path), fault.start_pos, fault.end_pos)
        if not WITHOUT_EFFECT.match(fault.operator_name):
            places.setdefault(place, []).append(f"{fault.operator_name} {item.job_id}")
    chance = random.Random(seed)
    chosen = chance.sample(sorted(places), min(count, len(places)))
    # A job's id is random; what stands before it is not.
    kept = {_choose(chance, places[place]) for place in chosen}
    others = [item.job_id for item in database.work_items if item.job_id not in kept]
    database.set_multiple_results(others, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return len(kept)


def _choose(chance: random.Random, faults: list[str]) -> str:
    kinds = sorted({fault.split()[0] for fault in faults})
    kind = chance.choice(kinds)
    return next(fault.split()[1] for fault in faults if fault.split()[0] == kind)


@contextlib.contextmanager
def start_workers(copies: list[Path], log: Path) -> Iterator[list[str]]:
    """Cosmic Ray's workers, one in each copy; yields their addresses, and ends them."""
    workers, urls = [], []
    with log.open("w") as output:
        for copy in copies:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            # The copy's modules come before those that the environment leads to, in children too.
            environment = {**os.environ, "PYTHONPATH": str(copy)}
            command = (sys.executable, "-m", "cosmic_ray.cli", "http-worker", "--port", str(port))
            workers.append(
                subprocess.Popen(command, cwd=copy, env=environment, stdout=output, stderr=output)
            )
            urls.append(f"http://127.0.0.1:{port}")
        try:
            for url in urls:
                _wait_for(int(url.rsplit(":", 1)[1]))
            yield urls
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"Cosmic Ray's worker did not start within {START_LIMIT_S} s")
        time.sleep(0.1)


def try_faults(words: argparse.Namespace, tests: list[str], folder: Path) -> Path:
    """Tries the picked faults in ``folder``; the database with what came of them."""
    copies = [folder / f"copy-{number}" for number in range(words.processes)]
    for copy in copies:
        copy.mkdir()
        copy_project(copy)
    pytest = ("-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider")
    command = shlex.join((sys.executable, *pytest, *tests))
    environment = {**os.environ, "PYTHONPATH": str(copies[0])}
    began_at = time.monotonic()
    whole = subprocess.run(
        shlex.split(command), cwd=copies[0], env=environment, capture_output=True, text=True
    )
    if whole.returncode:
        raise ValueError(f"{' '.join(tests)} fails without a fault:\n{whole.stdout[-2000:]}")
    limit_s = min(LIMIT_S, LEAST_LIMIT_S + 4 * (time.monotonic() - began_at))
    database, config = folder / "faults.sqlite", folder / "cosmic-ray.toml"
    with start_workers(copies, folder / "workers.log") as urls:
        # JSON's strings and lists are TOML's too.
        config.write_text(
            "[cosmic-ray]\n"
            f"module-path = {json.dumps(words.room)}\n"
            f"timeout = {limit_s:.0f}\nexcluded-modules = []\n"
            f"test-command = {json.dumps(command)}\n"
            '[cosmic-ray.distributor]\nname = "http"\n'
            f"[cosmic-ray.distributor.http]\nworker-urls = {json.dumps(urls)}\n"
        )
        cosmic_ray = (sys.executable, "-m", "cosmic_ray.cli")
        subprocess.run((*cosmic_ray, "init", config, database), cwd=copies[0], check=True)
        with use_db(str(database), WorkDB.Mode.open) as opened:
            print(f"{pick(opened, words.seed, words.n)} faults in {words.room}, tests: {tests}")
        subprocess.run((*cosmic_ray, "exec", config, database), cwd=copies[0], check=True)
    return database


def show(database: Path, words: argparse.Namespace) -> None:
    """Prints the faults that were not noticed, and the share of those that were."""
    noticed = survived = 0
    with use_db(str(database), WorkDB.Mode.open) as opened:
        for _job, result in sorted(opened.results, key=lambda each: each[1].diff or ""):
            if result.worker_outcome == WorkerOutcome.SKIPPED:
                continue
            if result.test_outcome == TestOutcome.SURVIVED:
                survived += 1
                print(f"\nnot noticed:\n{result.diff}")
            elif result.test_outcome == TestOutcome.KILLED:
                noticed += 1
            else:
                print(f"\nnot tried: {result.output}")
    share = noticed / max(noticed + survived, 1)
    print(f"\n{words.room}, seed {words.seed}: {noticed} of {noticed + survived} ({share:.0%})")


def main(given: list[str]) -> int:
    """Tries faults; the exit code."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("room", help="a folder or a file of the sources, such as launcher/plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-n", type=int, default=50, help="faults to try")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tests", nargs="*", help="by default those of the room")
    words = parser.parse_args(given)
    words.room = words.room.rstrip("/")
    try:
        if not (ROOT / words.room).exists():
            raise ValueError(f"there is no {words.room}: give a folder such as ROOM=launcher/plan")
        tests = words.tests or find_tests(words.room)
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            show(try_faults(words, tests, Path(folder)), words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
