"""``why``: what ``launcher why`` says of each fault of the corpus, beside torchrun's summary.

The corpus is ``tests/faults``: faults with their true cause, and what each of them left. Of those
that are held out only numbers are told, so that nobody builds rules from them.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import BenchmarkError, Goal
from benchmarks.trials import Comparison, Trial

if TYPE_CHECKING:
    from tests.faults.corpus import Fault

MOST_NOT_RIGHT = 5.0
"""Of 100 faults."""
PARTS = {"open": "two thirds that rules are built from", "held_out": "third that is held out"}
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", re.DOTALL)
SIGNALS = {-9: "killed", -15: "killed", -6: "crashed", -7: "crashed", -11: "crashed"}
"""What the exit code in torchrun's summary tells; any other stands for an error of the script."""
_ANALYSED = re.compile(r"missing ranks: \{[\d, ]+\}|Culprit rank \d+")


def why() -> Generator[Trial]:
    """Raises BenchmarkError where the corpus is not there: it is no part of an installation."""
    try:
        from tests.faults.corpus import read_faults
    except ImportError as error:
        raise BenchmarkError("there is no tests/faults; fix: run it in a checkout") from error
    for part, words in PARTS.items():
        faults = read_faults(part)
        told = Counter(judge(fault) for fault in faults)
        wrong = f"a wrong cause or node, told as certain: {words}"
        figures = count(told, faults)
        yield Trial(
            take=lambda figures=figures: figures,  # type: ignore[misc]
            rows=(
                Comparison(
                    what=f"cause and node not told right: {words}, {len(faults)} faults",
                    ours="not_right",
                    theirs=None,
                    goal=Goal(of="seconds", most=MOST_NOT_RIGHT),
                    note=describe(told, faults),
                    unit="of 100",
                ),
                Comparison(what=wrong, ours="wrong", theirs=None, unit="of 100"),
            ),
            warm_up=0,
        )


def count(told: Counter[str], faults: list[Fault]) -> Mapping[str, float]:
    """Of 100 faults."""
    whole = max(1, len(faults))
    return {
        "not_right": 100 * (len(faults) - told["right"]) / whole,
        "wrong": 100 * told["wrong"] / whole,
    }


def describe(told: Counter[str], faults: list[Fault]) -> str:
    """All counts in words, those of torchrun's summary and of torch's analyser too."""
    summaries = [fault for fault in faults if read_summary(fault)]
    by_torchrun = sum(is_right_in_summary(fault) for fault in summaries)
    recorded = [fault for fault in faults if recorders_of(fault)]
    analysed = sum(is_right_in_analysis(fault) for fault in recorded)
    return (
        f"right {told['right']}, wrong and certain {told['wrong']}, unclear {told['unclear']}. "
        f"torchrun's summary has the cause (of its exit code) and the rank right in {by_torchrun} "
        f"of the {len(summaries)} faults of which there is one. Torch's flight recorder analyser "
        f"alone names the rank in {analysed} of {len(recorded)} with recorders"
    )


def judge(fault: Fault) -> str:
    """``right``, ``wrong`` (and said with certainty), or ``unclear``."""
    from launcher.api.why import read_path
    from launcher.verdict.verdict import decide_verdict

    told = decide_verdict(read_path(fault.recording))
    is_there = fault.node == "any" or told.node == fault.node
    if told.cause.value in (fault.cause, *fault.also) and is_there:
        return "right"
    # Who tells no node has not told a wrong one.
    is_false = not is_there and told.node is not None
    is_wrong = is_false or told.cause.value not in (fault.cause, *fault.also)
    return "wrong" if is_wrong and told.certainty == "certain" else "unclear"


def read_summary(fault: Fault) -> str:
    """What torchrun told at its end; empty where it was not run, or told no root cause."""
    paths = [fault.summary, fault.recording, fault.recording / "node-0.log"]
    texts = [path.read_text() for path in paths if path.is_file()]
    return next((text for text in texts if "Root Cause" in text), "")


def is_right_in_summary(fault: Fault) -> bool:
    found = _ROOT_CAUSE.search(read_summary(fault))
    if found is None:
        return False
    rank, code = int(found[1]), int(found[2])
    cause = SIGNALS.get(code, "script-error")
    return cause in (fault.cause, *fault.also) and fault.rank in ("any", rank)


def recorders_of(fault: Fault) -> dict[int, Path]:
    """Each rank's flight recorder, as it was left."""
    found: dict[int, Path] = {}
    for path in sorted(fault.recording.rglob("*collectives.json")):
        rank = re.search(r"rank-(\d+)", str(path.relative_to(fault.recording)))
        if rank is not None:
            found[int(rank[1])] = path
    return found


def is_right_in_analysis(fault: Fault) -> bool:
    """Whether torch's own analyser names ranks that differ or are missing, and the true one."""
    with tempfile.TemporaryDirectory() as folder:
        for rank, path in recorders_of(fault).items():
            dump = json.loads(path.read_text())
            dump["entries"] = [{"frames": [], **entry} for entry in dump.get("entries", ())]
            # gloo's recorder leaves its group without a name, at which the analyser breaks down.
            groups = dump.get("pg_config") or {}
            dump["pg_config"] = {name or "0": group for name, group in groups.items()}
            Path(folder, f"rank_{rank}").write_bytes(pickle.dumps({"host_name": "", **dump}))
        argv = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder]
        done = subprocess.run(
            [*argv, "--prefix", "rank_"], capture_output=True, text=True, check=False, timeout=120
        )
    named = " ".join(_ANALYSED.findall(done.stdout + done.stderr))
    return bool(named) and fault.rank in ("any", *map(int, re.findall(r"\d+", named)))
