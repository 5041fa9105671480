"""Renders docs/job-file.md: every key with what it accepts, from the same schema as the errors."""

from __future__ import annotations

from typing import Any

from launcher.job.file import option_override, parse_job
from launcher.job.schema import Schema, describe, job_schema, render_flow, resolve
from launcher.yamlfile.problem import FileError

_BAD_JOB = """\
name: Digits
command: [torchrun, train.py]
nnodes: 4:1
nproc_pre_node: 2
rdzv:
  port: 70000
"""

_BAD_EXAMPLE = """
```yaml
{job}```

run with `--nproc-per-node 0` is refused with

```text
{problems}
```
"""

_HEAD = """\
# The job file

<!-- Made by `python docs/generate.py` from launcher/job/spec.py. Edit that file, not this one. -->

A job file is one YAML mapping that says what to run, on how many nodes and with which
resources. Two keys are enough:

```yaml
# yaml-language-server: $schema=job.schema.json
name: digits
command: [-m, train]
```

The first line gives editors that know YAML schemas completion, help and checks while typing;
`launcher schema` prints that schema. [jobs/digits.yaml](../jobs/digits.yaml) is a job to start
from.

## All keys
"""

_TAIL = """\
## How YAML is read

- By YAML 1.2: only `true` and `false` are truth values. `NO`, `on` and `1:4` are text, with or
  without quotes; octal numbers are written `0o17`.
- A key left empty (`rdzv:` and nothing more) counts as not given.
- A key given twice is an error. Anchors (`&name`), aliases (`*name`) and merges (`<<: *name`) work;
  tags (`!!python/...`) are refused.
- One document per file, in UTF-8.

## Paths

Relative paths of the host (`mounts` sources, `checkpoint_dir`, `local.python`, and `workdir` with
`--on local`) are relative to the folder in which the launcher is called, not to the job file.
`~` and variables are not expanded.

## Options instead of keys

Options on the command line replace values of the file, and are checked as the file is:

| Option | Same as |
| --- | --- |
| `--nnodes 1:4` | the key `nnodes` |
| `--nproc-per-node 2` | the key `nproc_per_node` |
| `--image ghcr.io/me/train:1.4` | the key `image` |
| `--set rdzv.port=29400` | any key; parts of the path are joined by dots |
| `--set mounts.0.read_only=true` | a number counts in a list from 0; one past the end appends |
| `--set 'secrets=[WANDB_API_KEY]'` | the value is YAML, so a list can be given in one piece |
| `--set env.PATTERN=*.py` | values under `env` and `docker.labels` are taken as they stand |
| `--set checkpoint_dir=` | an empty value: the default |

## When something is wrong

The launcher exits with 2 and names every problem of the file and of the options at once: the
file and line (or the option), the key, what was found, what is accepted, and the fix where there
is one. Values of `env` whose name looks like a credential's are not shown. This file
"""


def render_reference() -> str:
    """The reference as Markdown; the same text for the same schema."""
    root = job_schema()
    keys = [_key_section(key, field, root) for key, field in root["properties"].items()]
    return "\n".join([_HEAD, _overview(root), *keys, _TAIL + _bad_example()])


def _overview(root: Schema) -> str:
    rows = ["| Key | Accepted | Default |", "| --- | --- | --- |"]
    for key, field in root["properties"].items():
        accepted = _cell(describe(field))
        rows.append(f"| [`{key}`](#{key}) | {accepted} | {_default(key, field, root)} |")
    return "\n".join([*rows, ""])


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


def _bad_example() -> str:
    try:
        parse_job(_BAD_JOB, "jobs/bad.yaml", [option_override("--nproc-per-node", "0")])
    except FileError as error:
        return _BAD_EXAMPLE.format(job=_BAD_JOB, problems=error)
    raise AssertionError("the bad example is not bad")
