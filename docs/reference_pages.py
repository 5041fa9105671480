"""Pages of the reference that are made whole: commands, exit codes, rules, options
of strategies, decisions."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabric_train.strategies import INSTEAD, STRATEGIES
from launcher.commands.cli import _parser
from launcher.contract.causes import OF_RUNS, RETRY_FROM, Cause
from launcher.contract.errors import ExitCode
from launcher.manifests.checks.rules import Rule
from launcher.manifests.scripts.rules import ScriptRule

if TYPE_CHECKING:
    from launcher.manifests.checks.rules import AnyRule

OF_MANY = 4
"""An option of so many commands stands in a table of its own."""
GENERATED = "<!-- `make docs` writes this page. -->\n"


def render_rules(rules: Iterable[AnyRule]) -> str:
    """Rules as a table of docs/rules.md."""
    rows = [f"| `{rule.id}` | {rule.severity} | {rule.why} |\n" for rule in rules]
    return "".join(["| rule | severity | why |\n|---|---|---|\n", *rows])


def rules_page() -> str:
    """docs/rules.md."""
    return f"""# Rules of launcher check

{GENERATED}
`launcher check` names the rule behind each finding.

## Training scripts

What each is about: [check scripts](check-scripts.md).

{render_rules(ScriptRule)}
## Kubernetes manifests

What is read, and of which versions: [Kubernetes](kubernetes.md#check-a-manifest).

{render_rules(Rule)}"""


def exit_codes_page() -> str:
    """docs/exit-codes.md."""
    rows = [
        f"| {code} | {'yes' if code >= RETRY_FROM else 'no' if code else ''} "
        f"| `{cause}` | {cause.state} | {cause.run_end.whose} | {cause.meaning} |"
        for code in ExitCode
        for cause in OF_RUNS
        if cause.exit_code == code
    ]
    finer = [
        f"| `{one}` | `{one.of}` | {_in_cell(one.fix or one.meaning)} |"
        for one in Cause
        if one not in OF_RUNS
    ]
    return "\n".join(
        [
            "# Exit codes and causes",
            "",
            GENERATED,
            "`launcher run` ends with the exit code of its run, and so does each node's agent. The",
            "cause is in `outcome.json`, in `launcher status` and in the last lines of a run.",
            f"Codes from 1 to 127 are permanent; from {RETRY_FROM} on a retry is worth it, and",
            "schedulers can decide by that.",
            "",
            "| code | retry | cause | state | whose fault | meaning |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "Finer causes, of workers and of `launcher why`, stand for one of these:",
            "",
            "| cause | stands for | what helps in most cases, or what it means |",
            "|---|---|---|",
            *finer,
            "",
            "Other codes: 1 from `doctor` where a row failed, 2 from `check` where there is an",
            "error, and 128 + n where signal n ended a node.",
            "",
        ]
    )


def _in_cell(text: str) -> str:
    return text.replace("|", r"\|")


def fill_runbook(text: str) -> str:
    """A page of the runbook, with what the table says of each cause below its heading."""

    def fill(heading: re.Match[str]) -> str:
        cause = Cause(heading[1])  # type: ignore[call-arg]
        retry = "worth a retry" if cause.exit_code >= RETRY_FROM else "no retry"
        own = f"Exit code {int(cause.exit_code)}, {retry}"
        told = own if cause is cause.of else f"Stands for `{cause.of}`"
        return f"### {cause}\n\n*{told}. In short: {cause.fix}.*\n"

    return re.sub(r"^### (\S+)\n\n(?:\*.* In short: .*\*\n)?", fill, text, flags=re.MULTILINE)


def commands_page() -> str:
    """docs/commands.md, from the parsers; options of many commands are told once."""
    parser = _parser("launcher")
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    told = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    options = {name: _options(commands.choices[name]) for name in told}
    count = Counter(row for rows in options.values() for row in rows)
    common = [row for row, number in count.items() if number >= OF_MANY]
    index = [f"| [`{name}`](#{name}) | {_cell(text)} |" for name, text in told.items()]
    shared = [
        f"{row} {', '.join(name for name, rows in options.items() if row in rows)} |"
        if count[row] < len(told)
        else f"{row} all |"
        for row in common
    ]
    parts = [
        f"# Commands\n\n{GENERATED}\n`launcher COMMAND --help` prints the same. Words behind `--`"
        " go to the training.",
        "\n".join(["| command | it does |", "|---|---|", *index]),
        "## Options of many commands",
        "\n".join(["| option | meaning | commands |", "|---|---|---|", *shared]),
    ]
    for name, rows in options.items():
        parts.append(f"## {name}\n\n{_sentence(told[name])}")
        if epilog := commands.choices[name].epilog:
            parts.append(_cell(epilog))
        if own := [row for row in rows if row not in common]:
            parts.append("\n".join(["| option | meaning |", "|---|---|", *own]))
    return "\n\n".join(parts) + "\n"


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """The rows of a command's arguments and options."""
    formatter = parser._get_formatter()
    rows = []
    for action in parser._actions:
        if action.dest == "help" or action.help is argparse.SUPPRESS:
            continue
        value = formatter._format_args(action, _place(action))
        words = ", ".join(action.option_strings)
        words = f"{words} {value}".strip() if action.nargs != 0 else words
        meaning = formatter._expand_help(action) if action.help else "the same as JSON"
        rows.append(f"| `{_cell(words)}` | {_cell(meaning)} |")
    return rows


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _place(action: argparse.Action) -> str:
    """What stands for the value in the usage."""
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def strategies_page() -> str:
    """docs/strategies-options.md, from the docstrings of strategies and of their fields."""
    parts = [
        f"# Options of each strategy\n\n{GENERATED}\nWhich to choose: [strategies](strategies.md).",
        "## Each strategy",
    ]
    for name, place in STRATEGIES.items():
        module, _, kind = place.partition(":")
        strategy = getattr(import_module(f"fabric_train.strategies.{module}"), kind)
        told = {k: v for parent in strategy.__mro__[-2::-1] for k, v in _told(parent).items()}
        rows = [
            f"| `{field.name}` | {_default(field.default)} | {_cell(told[field.name])} |"
            for field in dataclasses.fields(strategy)
        ]
        parts.append(f"### `{name}`\n\n{inspect.cleandoc(strategy.__doc__)}")
        if rows:
            parts.append("\n".join(["| option | default | |", "|---|---|---|", *rows]))
    rows = [f"| `{name}` | {why} | {fix} |" for name, (why, fix) in INSTEAD.items()]
    parts.append(
        "## Names of other programs\n\n`--strategy` refuses them, with what to write instead."
    )
    parts.append("\n".join(["| name | why | instead |", "|---|---|---|", *rows]))
    return re.sub(r"(?<!`)``(?!`)", "`", "\n\n".join(parts)) + "\n"


def _told(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class, by the field's name."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: told.value.value
        for field, told in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(told, ast.Expr)
        and isinstance(told.value, ast.Constant)
    }


def _default(value: Any) -> str:
    if value == "":
        return "(empty)"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def decisions_page(folder: Path) -> str:
    """docs/decisions/README.md, from the records' first lines."""
    rows = []
    for file in sorted(folder.glob("0*.md")):
        title = re.sub(r"^#\s*(\d+[.:]?\s*)?", "", file.read_text("utf-8").splitlines()[0])
        rows.append(f"- [{file.name[:4]}: {title}]({file.name})")
    why = "Why something differs from what one would expect. A record is not changed later."
    return "\n".join(["# Decisions", "", GENERATED, why, "", *rows, ""])


def generated_pages(docs: Path) -> dict[Path, str]:
    """Each page that is made whole, with its text, and those of the runbook."""
    runbooks = [docs / name for name in ("runbook.md", "runbook-nodes.md")]
    return {
        **{page: fill_runbook(page.read_text("utf-8")) for page in runbooks},
        docs / "commands.md": commands_page(),
        docs / "exit-codes.md": exit_codes_page(),
        docs / "rules.md": rules_page(),
        docs / "strategies-options.md": strategies_page(),
        docs / "decisions/README.md": decisions_page(docs / "decisions"),
    }
