"""docs/strategies*.md hold every strategy with its options, and what is promised of each."""

import dataclasses
import gc
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fabric_train.strategies import STRATEGIES
from fabric_train.strategies.strategy import Strategy
from tests.fabric_train.forked import run_forked

DOCS = Path(__file__).parents[4] / "docs"
PAGES = ("strategies.md", "strategies-options.md")
PAGE = "\n".join((DOCS / name).read_text() for name in PAGES)
NAME = r"`([a-z0-9_+:]+)`"
EXAMPLE = 'make_strategy("local_sgd", {"every": 4})'


def read_part(heading: str) -> str:
    """What stands between a heading of the page and the next one of its kind."""
    _, found, rest = PAGE.partition(f"\n## {heading}\n")
    assert found
    return rest.partition("\n## ")[0]


def read_sections() -> dict[str, str]:
    """The text of each strategy's section, by its name."""
    sections: dict[str, str] = {}
    for section in read_part("Each strategy").split("\n### ")[1:]:
        heading, _, text = section.partition("\n")
        for name in re.findall(NAME, heading):
            assert name not in sections
            sections[name] = text
    return sections


SECTIONS = read_sections()


def read_options(name: str) -> dict[str, str]:
    """Defaults as the page shows them, by option; with those of a strategy that is referred to."""
    text = SECTIONS[name]
    options: dict[str, str] = {}
    for other in re.findall(rf"those of {NAME}", text):
        options |= read_options(other)
    return options | dict(
        re.findall(rf"^\| {NAME.replace('a-z', 'a-zA-Z')} \| (.*?) \|", text, re.M)
    )


def find_class(name: str) -> type[Strategy]:
    module, _, class_name = STRATEGIES[name].partition(":")
    kind: type[Strategy] = getattr(import_module(f"fabric_train.strategies.{module}"), class_name)
    return kind


def show(default: Any) -> str:
    if default == "":
        return "(empty)"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def test_every_strategy_has_a_section_and_no_other_name_has_one():
    assert set(SECTIONS) == set(STRATEGIES)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_option_is_in_its_section_with_its_default(name):
    fields = {field.name: show(field.default) for field in dataclasses.fields(find_class(name))}
    assert read_options(name) == fields


@pytest.mark.parametrize(
    "choice",
    [EXAMPLE, 'make_strategy("fsdp")', 'make_strategy("ddp")', 'make_strategy("pipeline")'],
)
def test_the_loop_of_ones_own_runs_with_any_strategy(choice):
    code = re.findall(r"```python\n(.*?)```", read_part("In a loop of your own"), re.S)[0]
    assert EXAMPLE in code
    first, second = run_forked(run_example, 2, code.replace(EXAMPLE, choice), group=False)
    assert first.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert all(torch.equal(first[name], second[name]) for name in first)


def run_example(code: str) -> dict[str, torch.Tensor]:
    scope: dict[str, Any] = {}
    end_group = dist.destroy_process_group

    def end_group_without_ddp() -> None:
        # Both ranks may hang if DDP holds the group at its end: see leave_world.
        assert not any(type(thing) is DistributedDataParallel for thing in gc.get_objects())
        end_group()

    gc.disable()  # else it might free what the example holds in a cycle
    dist.destroy_process_group = end_group_without_ddp
    exec(code, scope)
    return {name: weight.clone() for name, weight in scope["weights"].items()}
