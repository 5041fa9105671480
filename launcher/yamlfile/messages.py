"""Plain words for what is wrong with a text that is not YAML: the problem, and the fix."""

from __future__ import annotations

import yaml

_QUOTE = "put the text in quotes"
_EXPLANATIONS = (
    ("<document start>", "something after the end of the mapping", "keep one mapping in the file"),
    ("undefined alias", "an alias (*name) without its anchor (&name)", _QUOTE),
    ("scanning an alias", "text that begins with *", _QUOTE),
    ("duplicate anchor", "an anchor (&name) that was used before", "give it another name"),
    ("scanning an anchor", "text that begins with &", _QUOTE),
    ("undefined tag handle", "a tag (!name), which is not accepted", "remove the tag"),
    (" a tag", "text that begins with !", _QUOTE),
    ("scanning a block scalar", "text that begins with | or >", _QUOTE),
    ("mapping values are not allowed", "a second ': ' on the line, or a wrong indentation",
     "put text that holds ': ' in quotes; give keys of one section one indentation"),
    ("could not find expected ':'", "a line that is no key: value", "write key: value"),
    ("scanning a quoted scalar", "quotes that are not closed, or a wrong escape in them",
     "close the quotes; write a backslash as two, or use single quotes"),
    ("a double-quoted scalar", "an unknown escape in double quotes",
     "write a backslash as two, or use single quotes"),
    ("a flow node", "a [ or { that is not closed", f"close it, or {_QUOTE}"),
    ("flow sequence", "a list in [ ] that is not closed, or lacks a comma", "close it with ]"),
    ("flow mapping", "a mapping in { } that is not closed, or lacks a comma", "close it with }"),
    ("block node", "text that begins with a bracket or a comma, or no value", _QUOTE),
    ("mapping keys are not", "text that begins with ?", _QUOTE),
    ("sequence entries", "a - where no list can begin", "put the list on the next line"),
    ("block mapping", "a wrong indentation, or quotes that end before the text does",
     "give the keys of one section one indentation"),
    ("block collection", "a line that is not an item of the list before it", "begin it with -"),
)  # fmt: skip


def explain(message: str, text: str, mark: yaml.Mark | None) -> tuple[str, str]:
    """The problem and the fix in plain words; PyYAML's speak of tokens and scanners."""
    character = text[mark.index : mark.index + 1] if mark is not None else ""
    if character == "\t":
        return "a tab; YAML indents with spaces", "replace the tab by spaces"
    if "cannot start any token" in message and character:
        return f"text that begins with {character}", "put the text in quotes"
    for part, problem, fix in _EXPLANATIONS:
        if part in message:
            return problem, fix
    return f"not valid YAML: {message.strip()}", "check indentation and quotes around this line"
