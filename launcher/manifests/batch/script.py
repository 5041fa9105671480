"""A batch script as lines: the options of sbatch, and the lines that start torchrun.

Nothing is run, and no variable of the script is followed: only what a line itself says is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from launcher.manifests.imports.programs import PROGRAMS

SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".batch")
SBATCH = re.compile(r"^#SBATCH(?=\s|$)(.*)$", re.MULTILINE)
SHORT = PROGRAMS["srun"].short
FLAGS = (*PROGRAMS["srun"].flags, *PROGRAMS["torchrun"].flags)
TORCHRUN = re.compile(r"(?:.*/)?torchrun|torch\.distributed\.(?:run|launch)")
SUBSTITUTED = r"\$\((?:[^()]|\([^()]*+\))*+\)|`[^`]*+`"
WORD = re.compile(
    rf"""(?:\\.|'[^']*+'|"(?:\\.|{SUBSTITUTED}|[^"\\])*+"|{SUBSTITUTED}|[^\s'"\\`])++""", re.DOTALL
)
NOT_HERE = re.compile(r"\\\$[({]*\w*|'[^']*'")
"""Parts of a word that the script's own shell does not fill in."""
HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*['\"]?(\w+)")


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word without its quotes, and its line.

    ``here`` is the part in which the script's own shell fills in variables and commands; the rest
    is filled in by a shell on each node, which ``bash -c '...'`` starts.
    """

    text: str
    here: str
    line: int


Options = Mapping[str, Word]
"""By long names, with ``-`` for ``_``; each ``text`` is the value, empty without one."""


@dataclass(frozen=True, kw_only=True)
class ScriptLine:
    """A command, with the rows that continue it; ``number`` is that of the first one."""

    raw: str
    number: int
    words: tuple[Word, ...]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A line that starts torchrun.

    ``srun`` are the options of the srun in front of it, or None without srun. ``is_open``: a
    variable that may hold more options follows it.
    """

    line: ScriptLine
    srun: Options | None
    options: Options
    is_open: bool

    def place(self, name: str) -> int:
        """The line of an option, or that of torchrun if the option is not given."""
        given = self.options.get(name)
        return self.line.number if given is None else given.line


@dataclass(frozen=True, kw_only=True)
class BatchScript:
    """What is known of a batch script; ``late`` are options that sbatch does not read."""

    file: str
    options: Options
    late: tuple[ScriptLine, ...]
    lines: tuple[ScriptLine, ...]
    launches: tuple[Launch, ...]


def is_batch_script(text: str, file: str) -> bool:
    """Whether a file is one by its suffix, or by its content unless the suffix is YAML's."""
    suffix = PurePath(file).suffix.lower()
    if suffix in (".yaml", ".yml", ".json"):
        return False
    return suffix in SUFFIXES or text.startswith("#!") or bool(SBATCH.search(text))


def parse_batch_script(text: str, file: str) -> BatchScript:
    """Reads a batch script; nothing in it is an error here."""
    text = text.replace("\r\n", "\n")
    lines = tuple(_read_lines(text))
    first = lines[0].number if lines else len(text)
    options: dict[str, Word] = {}
    late = []
    for found in SBATCH.finditer(text):
        number = text.count("\n", 0, found.start()) + 1
        words, _ = _split(found[1], number)
        if number < first:
            options |= _parse_options(words)[0]
        else:
            late.append(ScriptLine(raw=found[1].strip(), number=number, words=words))
    return BatchScript(
        file=file,
        options=options,
        late=tuple(late),
        lines=lines,
        launches=tuple(launch for line in lines if (launch := _parse_launch(line))),
    )


def _read_lines(text: str) -> Iterator[ScriptLine]:
    """The commands, without comments and here-documents."""
    held: list[str] = []
    end = ""
    for number, row in enumerate(text.split("\n"), 1):
        if end:
            end = "" if row.strip() == end else end
            continue
        if not held and (not row.strip() or row.lstrip().startswith("#")):
            continue
        held.append(row)
        raw, first = "\n".join(held), number - len(held) + 1
        words, is_whole = _split(raw, first)
        # Without the limit, a quote that is never closed would swallow the whole script.
        if (row.endswith("\\") or not is_whole) and len(held) < 100:
            continue
        found = HERE_DOCUMENT.search(raw)
        end = found[1] if found else ""
        held.clear()
        yield ScriptLine(raw=raw, number=first, words=words)


def _split(raw: str, line: int, *, on_node: bool = False) -> tuple[tuple[Word, ...], bool]:
    """The words of a command, also those of ``bash -c '...'``, and whether all quotes end."""
    words: list[Word] = []
    at = 0
    while at < len(raw):
        if raw[at].isspace() or raw.startswith("\\\n", at):
            at += 1 if raw[at].isspace() else 2
            continue
        found = WORD.match(raw, at)
        if found is None:
            return tuple(words), False
        token, number = found[0], line + raw.count("\n", 0, at)
        at = found.end()
        if token.startswith("#"):
            at = raw.find("\n", at) if "\n" in raw[at:] else len(raw)
        elif token[0] in "'\"" and words and re.fullmatch(r"-[a-z]*c|eval", words[-1].text):
            inner, _ = _split(token[1:-1], number, on_node=on_node or token[0] == "'")
            words += inner
        else:
            here = "" if on_node else NOT_HERE.sub("", token)
            text = re.sub(r"\\(.)|['\"]", r"\1", token, flags=re.DOTALL).lstrip("(")
            words.append(Word(text=text, here=here, line=number))
    return tuple(words), True


def _parse_options(words: Sequence[Word]) -> tuple[dict[str, Word], Sequence[Word]]:
    """The options up to the first word that is not an option, and the words from there on."""
    found: dict[str, Word] = {}
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        word = words[at]
        at += 1
        name, equals, value = word.text.partition("=")
        if not name.startswith("--"):
            value = name[2:] + value
            name, equals = SHORT.get(name[1:2], name), value
        name = name.lstrip("-").replace("_", "-")
        takes_next = not equals and name not in FLAGS and at < len(words)
        if takes_next and not words[at].text.startswith("-"):
            value, word = words[at].text, words[at]
            at += 1
        found[name] = Word(text=value, here=word.here, line=word.line)
    return found, words[at:]


def _parse_launch(line: ScriptLine) -> Launch | None:
    """The launch of a line; None where it starts no torchrun."""
    texts = [word.text for word in line.words]
    at = next((i for i, text in enumerate(texts) if TORCHRUN.fullmatch(text)), None)
    if at is None:
        return None
    ends = ("&&", "||", "|", "then", "else", "do", "{")
    start = max((i + 1 for i in range(at) if texts[i] in ends or texts[i][-1:] == ";"), default=0)
    before = texts[start:at]
    # These programs take the name of another program and do not start it.
    if {
        *["echo", "printf", "which", "type", "pip", "pkill", "pgrep", "killall", "cat", "ls"]
    } & set(before):
        return None
    srun = start + before.index("srun") + 1 if "srun" in before else None
    options, rest = _parse_options(line.words[at + 1 :])
    return Launch(
        line=line,
        srun=None if srun is None else _parse_options(line.words[srun:at])[0],
        options=options,
        is_open=not rest or rest[0].text.startswith("$"),
    )
