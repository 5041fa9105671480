"""Options on the command lines of sbatch, srun and torchrun, by their long names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from launcher.manifests.batch.shell import ShellWord


@dataclass(frozen=True, kw_only=True)
class GivenOption:
    """An option's value, empty without one, and its line."""

    value: str
    line: int


Options = Mapping[str, GivenOption]

SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint",
    "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile",
    "G": "gpus", "i": "input", "J": "job-name", "L": "licenses", "M": "clusters",
    "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "S": "core-spec", "T": "threads", "t": "time", "W": "wait", "w": "nodelist",
    "x": "exclude",
}  # fmt: skip
"""Short options of sbatch and srun that take a value."""
SLURM_FLAGS = {
    "contiguous", "exact", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "immediate",
    "interactive", "kill-on-bad-exit", "label", "multi-prog", "no-allocate",
    "no-container-mount-home", "container-mount-home", "container-writable",
    "container-remap-root", "no-kill", "no-requeue", "nice", "oversubscribe", "overcommit",
    "overlap", "parsable", "preserve-env", "propagate", "pty", "quiet", "reboot", "requeue",
    "resv-ports", "spread-job", "test-only", "unbuffered", "use-min-nodes", "usage", "verbose",
    "version",
}  # fmt: skip
"""Long options of sbatch and srun whose value, if they have one, follows ``=``."""
TORCHRUN_FLAGS = {"standalone", "no-python", "run-path", "module", "help", "use-env"}


def parse_slurm_options(words: Sequence[ShellWord]) -> tuple[dict[str, GivenOption], int]:
    """The options in front, and the place of the first word that is none."""
    return _parse(words, SLURM_FLAGS, SHORT)


def parse_torchrun_options(words: Sequence[ShellWord]) -> tuple[dict[str, GivenOption], int]:
    """The same for torchrun, whose names may be written with ``_`` or ``-``."""
    return _parse(words, TORCHRUN_FLAGS, {"r": "redirects", "t": "tee"})


def _parse(
    words: Sequence[ShellWord], flags: Set[str], short: Mapping[str, str]
) -> tuple[dict[str, GivenOption], int]:
    found: dict[str, GivenOption] = {}
    at = 0
    while at < len(words) and words[at].raw.startswith("-") and len(words[at].raw) > 1:
        text, line = words[at].raw, words[at].line
        at += 1
        if text == "--":
            break
        following = words[at].raw if at < len(words) else ""
        if text.startswith("--"):
            name, equals, value = text[2:].partition("=")
            name = name.replace("_", "-")
            takes_next = not equals and name not in flags
        else:
            name = short.get(text[1], "")
            value, takes_next = text[2:].removeprefix("="), bool(name) and len(text) == 2
        if takes_next:
            value, at = following, at + 1
        if name:
            found[name] = GivenOption(value=value, line=line)
    return found, min(at, len(words))


def split_sbatch_line(text: str, line: int) -> tuple[ShellWord, ...]:
    """The words behind ``#SBATCH``: sbatch knows quotes and comments there, and no variables."""
    return tuple(ShellWord(raw=word, line=line) for word in _sbatch_words(text))


def _sbatch_words(text: str) -> Iterator[str]:
    word, quote, begun, escaped = "", "", False, False
    for char in text:
        if escaped or (char == "\\" and quote != "'"):
            word, begun = (word + char, True) if escaped else (word, begun)
            escaped = not escaped
        elif quote:
            word, quote = (word, "") if char == quote else (word + char, quote)
        elif char in "'\"":
            quote, begun = char, True
        elif char == "#":
            break
        elif char.isspace():
            if begun:
                yield word
            word, begun = "", False
        else:
            word, begun = word + char, True
    if begun:
        yield word
