"""Fits a cause's fix (contract/causes) to where the workers ran, and fills in the values that a
line names. Pure.
"""

from __future__ import annotations

import re
import shlex

from launcher.contract import typed
from launcher.contract.causes import Cause
from launcher.plan.launch_plan import LaunchPlan

_HOST = (
    r"(?P<HOST>(?:\d+\.){3}\d+|(?<=\[)[\da-f:.]+(?=\])"
    r"|(?<![\w.])(?!\S*\.(?:py|cc|cpp|cu|h):)[A-Za-z][\w.-]*)"
)
_VALUES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_HOST}(?:\]?:|, |<)(?P<PORT>\d\d+)\b",
        r"host='(?P<HOST>[^']+)', port=(?P<PORT>\d+)",
        r"(?:[Cc]ould not|[Ff]ailed to) resolve (?:host(?:name)?:? )?'?(?P<NAME>[\w.-]*\w)",
        r"denied: '(?P<FILE>[^']+)'$",
        r" '?(?P<FILE>[^\s':]+)'?: Permission denied$",
        r"resources\.memory=(?P<SIZE>\w+)",
        r" (?P<MODULE>[\w.]+) is a file of a package",
        r"; it lies in (?P<FOLDER>\S+)$",
        r"; fix: (?P<FIX>.+)$",
    )
)
_PLACEHOLDER = re.compile(r"\b(?:HOST|PORT|NAME|FILE|SIZE|MODULE|FOLDER|FIX|PACKAGE|RUN)\b")


_RESUME = re.compile(r"(?:, with|; then|;) --resume RUN(?: goes on)?")


def fit_fixes(plan: LaunchPlan, *, can_resume: bool = True) -> dict[Cause, str]:
    """The fixes that differ with where a plan's workers run: in a hold, in an image, or by this
    Python.

    ``can_resume``: the run may have left a checkpoint.
    """
    fixes = {} if can_resume else {cause: _RESUME.sub("", cause.fix) for cause in Cause}
    if plan.hold:
        name, nnodes = plan.hold.rpartition("-")[0], str(len(plan.nodes))
        fixes[Cause.HOLD_ENDED] = typed.command("hold", "--name", name, "--nnodes", nnodes)
    if plan.image:
        build = typed.command("build", "--base", plan.image, "--tag", "REF")
        fix = f"{build}, with PACKAGE in requirements.txt; then --image REF"
        fixes[Cause.MISSING_MODULE] = fix
    elif plan.own and (python := plan.own.own_python):
        install = f"{shlex.quote(python)} -m pip install PACKAGE"
        fixes |= {
            Cause.MISSING_MODULE: f"{install}; or another Python: --set local.python=PATH",
            Cause.HOST_OUT_OF_MEMORY: "hold less, or fewer workers; free -h shows what there is",
        }
    return fixes


def fill_fix(fix: str, *texts: str, **known: str) -> str:
    """The fix with what ``known`` and ``texts`` say; a placeholder without a value stays."""
    values: dict[str, str] = {}
    for text in texts:
        for pattern in _VALUES:
            if match := pattern.search(text):
                values = match.groupdict() | values
    values = {"NAME": values.get("HOST", "")} | values | known
    return _PLACEHOLDER.sub(lambda placeholder: values.get(placeholder[0]) or placeholder[0], fix)
