"""A fix with the values that the verdict's own line names, in place of its placeholders. Pure."""

from __future__ import annotations

import re

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
    )
)
_PLACEHOLDER = re.compile(r"\b(?:HOST|PORT|NAME|FILE|SIZE|MODULE|FOLDER|PACKAGE|RUN)\b")


def fill_fix(fix: str, text: str, **known: str) -> str:
    """The fix with what ``text`` and ``known`` say; a placeholder without a value stays."""
    found: dict[str, str] = {}
    for pattern in _VALUES:
        if told := pattern.search(text):
            found = told.groupdict() | found
    found = {"NAME": found.get("HOST", "")} | found | known
    return _PLACEHOLDER.sub(lambda one: found.get(one[0]) or one[0], fix)
