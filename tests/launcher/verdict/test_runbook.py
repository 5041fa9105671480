"""docs/runbook.md: each cause has its section, and nothing else has one."""

import re
from pathlib import Path

from launcher.contract.causes import Cause

DOCS = Path(__file__).parents[3] / "docs"
TEXT = "".join((DOCS / name).read_text() for name in ("runbook.md", "runbook-nodes.md"))


def test_each_cause_has_its_section_under_the_anchor_that_verdicts_link_to():
    anchors = re.findall(r"^### (\S+)$", TEXT, re.MULTILINE)
    causes = {cause for cause in Cause if cause.fix}
    assert sorted(anchors) == sorted(causes)
    assert {cause.section for cause in causes} == {f"launcher docs {a}" for a in anchors}


def test_each_section_says_how_to_be_sure_how_to_fix_it_and_how_to_avoid_it():
    for section in TEXT.split("\n### ")[1:]:
        told = re.findall(r"^- (Be sure|Fix|Never again): \S", section, re.MULTILINE)
        assert told == ["Be sure", "Fix", "Never again"], section[:40]
