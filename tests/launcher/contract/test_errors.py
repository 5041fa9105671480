import re
import signal
from pathlib import Path

import pytest

import launcher
from launcher.contract.errors import (
    KeyInputError,
    LauncherError,
    name_ending,
    name_exit_code,
    name_signal,
)


@pytest.mark.parametrize("number", [n for n in signal.valid_signals() if n < signal.SIGRTMIN])
def test_every_signal_has_its_name_and_its_number(number):
    name = signal.Signals(number).name
    assert name_signal(number) == f"{name} ({number})"
    assert name_ending(-number) == f"{name} ({number})"
    assert name_exit_code(128 + number) == f"{128 + number}, {name} ({number})"


@pytest.mark.parametrize("code", [0, 1, 2, 127, 128, 193, 197, 255])
def test_any_other_code_is_told_as_it_is(code):
    assert name_ending(code) == f"exit code {code}"
    assert name_exit_code(code) == str(code)


def test_a_number_without_a_name_is_told_as_it_is():
    assert name_signal(99) == "signal 99"


def test_no_text_of_the_launcher_names_a_signal_by_its_number_alone():
    folder = Path(launcher.__file__).parent
    found = [
        f"{path.relative_to(folder)}:{number}: {line.strip()}"
        for path in folder.rglob("*.py")
        if path.name != "errors.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"signal \{|signal %|with \{[^}]*(exit_)?code\}", line)
    ]
    assert found == []


def test_an_error_is_what_was_given_and_the_fix():
    both, alone = KeyInputError(("mounts", 0, "source"), "is away", "mkdir it"), LauncherError("x")
    assert (both.key, str(both)) == (
        ("mounts", 0, "source"),
        "mounts.0.source: is away\n  fix: mkdir it",
    )
    assert (str(alone), alone.hint) == ("x", "")
