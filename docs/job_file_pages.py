"""What is filled into pages that people write: the keys of docs/job-file*.md with what they accept,
from the same schema as the errors, and the functions of docs/python.md.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from launcher.api.python import RunHandle, find, list_runs
from launcher.job.file import option_override, parse_job
from launcher.job.schema import Schema, describe, job_schema, render_flow, resolve
from launcher.yamlfile.problem import FileError

_KEYS = re.compile(r"(?<=<!-- keys -->\n).*?(?=<!-- end of keys -->)", re.DOTALL)
GROUPS = {
    "What runs": ("name", "command", "code", "workdir", "image", "env", "secrets", "mounts"),
    "On how much": ("nnodes", "nproc_per_node", "devices", "resources"),
    "When something fails": ("max_restarts", "checkpoint_dir", "stop_grace_s", "notify"),
    "How nodes meet and workers start": ("engine", "start", "agent", "rdzv", "torch_version"),
}
"""The keys of every target, by the headings of docs/job-file.md."""
TARGETS = ("local", "docker", "hosts", "slurm", "kubernetes")
"""The keys of docs/job-file-targets.md."""
_FUNCTIONS = re.compile(r"(?<=<!-- api -->\n).*?(?=<!-- end of api -->)", re.DOTALL)
_REFUSED = re.compile(
    r"(```yaml\n(?P<job>[^`]*)```\n\nrun with `(?P<option>--\S+) (?P<value>\S+)` is refused with"
    r"\n\n```text\n).*?(?=```)",
    re.DOTALL,
)


def fill_functions(text: str) -> str:
    """docs/python.md with what a run handle and the functions beside it do."""
    rows = ["| call | it does |", "|---|---|"]
    members = [(f".{name}", member) for name, member in vars(RunHandle).items() if name[0] != "_"]
    for name, member in [*members, ("find", find), ("list_runs", list_runs)]:
        if isinstance(member, property):
            call, member = name, member.fget
        else:
            given = [str(p) for n, p in inspect.signature(member).parameters.items() if n != "self"]
            names = [re.sub(r":.*?(?= = |$)", "", p).replace(" = ", "=") for p in given]
            call = f"{name}({', '.join(names)})"
        does = _markdown((inspect.getdoc(member) or "").partition("\n\n")[0])
        rows.append(f"| `{call}` | {_cell(does)} |")
    return _FUNCTIONS.sub(lambda _: "\n".join(["", *rows, "", ""]), text)


def fill_reference(text: str) -> str:
    """docs/job-file.md with its keys, and the errors of its wrong job file, as they are now."""
    keys = job_schema()["properties"].keys()
    unplaced = {*TARGETS}.union(*GROUPS.values()) ^ {*keys}
    assert not unplaced, f"no key, or in no group of docs/job_file_pages.py: {unplaced}"
    parts = [f"## {group}\n\n{_key_sections(keys)}" for group, keys in GROUPS.items()]
    rows = ["| about | keys |", "|---|---|"]
    for group, keys in GROUPS.items():
        rows.append(f"| {group[0].lower()}{group[1:]} | {_links(keys, '')} |")
    rows.append(f"| one target alone | {_links(TARGETS, 'job-file-targets.md')} |")
    made = "\n".join(["", *rows, "", *parts, ""])
    return _REFUSED.sub(lambda m: f"{m[1]}{_errors_of(m)}\n", _KEYS.sub(lambda _: made, text))


def fill_targets(text: str) -> str:
    """docs/job-file-targets.md with its keys."""
    return _KEYS.sub(lambda _: f"\n{_key_sections(TARGETS)}\n", text)


def _links(keys: Iterable[str], page: str) -> str:
    return ", ".join(f"[`{key}`]({page}#{key})" for key in keys)


def _errors_of(example: re.Match[str]) -> str:
    """What the reader says of a job file with an option."""
    try:
        override = option_override(example["option"], example["value"])
        parse_job(example["job"], "jobs/bad.yaml", [override])
    except FileError as error:
        return str(error)
    raise AssertionError("the bad example is not bad")


def _key_sections(keys: Iterable[str]) -> str:
    root = job_schema()
    return "\n".join(_key_section(key, root["properties"][key], root) for key in keys)


def _key_section(key: str, field: Schema, root: Schema) -> str:
    parts = [f"### {key}", _markdown(field["description"])]
    section = _keys_of(field)
    if section is None:
        default = _default(key, field, root)
        parts.append(f"Accepted: {describe(field)}. Default: {default}.")
    else:
        parts += _tables(section)
    return "\n\n".join([*parts, *_example(key, field, section)]) + "\n"


def _tables(section: Schema) -> list[str]:
    """The keys of a section, then those of each section in it."""
    rows = ["| Key | Accepted | Default | Meaning |", "| --- | --- | --- | --- |"]
    inner: list[str] = []
    for key, field in section["properties"].items():
        below = _keys_of(field)
        accepted = _cell(describe(field))
        meaning = _cell(_markdown(field["description"]))
        rows.append(f"| `{key}` | {accepted} | {_default(key, field, section)} | {meaning} |")
        if below:
            inner += [f"Keys of `{key}`:", *_tables(below)]
    return ["\n".join(rows), *inner]


def _keys_of(field: Schema) -> Schema | None:
    """The section that a field, or each item of its list, is made of."""
    node = resolve(field)
    for one in [node, *node.get("anyOf", ())]:
        node = resolve(one.get("items", one))
        if "properties" in node:
            return node
    return None


def _default(key: str, field: Schema, section: Schema) -> str:
    if key in section.get("required", ()):
        return "none, it must be given"
    return f"`{render_flow(field['default'])}`" if "default" in field else "not set"


def _example(key: str, field: Schema, section: Schema | None) -> list[str]:
    examples = field.get("examples", ())
    if not examples and section is not None:
        inner = section["properties"].items()
        examples = [{name: one["examples"][0] for name, one in inner if "examples" in one}]
    blocks = [_block(key, example, is_section=section is not None) for example in examples]
    return ["```yaml\n" + "\n# or\n".join(blocks) + "\n```"] if blocks else []


def _block(key: str, example: Any, *, is_section: bool) -> str:
    if is_section and isinstance(example, dict):
        return "\n".join(
            [f"{key}:", *(f"  {name}: {render_flow(one)}" for name, one in example.items())]
        )
    return f"{key}: {render_flow(example)}"


def _markdown(text: str) -> str:
    return text.replace("``", "`")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
