"""All rules of batch scripts, applied to one."""

from __future__ import annotations

import re

from launcher.manifests.batch.ending import check_end
from launcher.manifests.batch.meeting import check_meeting
from launcher.manifests.batch.rules import BatchRule
from launcher.manifests.batch.script import parse_batch_script
from launcher.manifests.batch.starting import check_start
from launcher.manifests.batch.submitting import check_lines, check_range, check_variables
from launcher.manifests.checks.rules import Breach

ONCE = (BatchRule.OMP_NUM_THREADS,)
"""Rules about the whole script, whichever launch shows them."""
SEVERAL_JOBS = re.compile(r"^#SBATCH\s+(hetjob|packjob)\b", re.MULTILINE)


def check_batch_script(text: str, file: str) -> list[Breach]:
    """The breaches of one batch script, in the order of its lines.

    Of a job with several components only what sbatch reads is looked at: which options belong to
    which step is not known.
    """
    script = parse_batch_script(text, file)
    found = list(check_lines(script, text))
    if not SEVERAL_JOBS.search(script.text):
        found += [*check_range(script), *check_variables(script)]
        for launch in script.launches:
            found += [*check_start(script, launch), *check_meeting(script, launch)]
        found += check_end(script)
    first = {one.rule: one for one in reversed(found)}
    found = [one for one in found if one.rule not in ONCE or one is first[one.rule]]
    return sorted(dict.fromkeys(found), key=lambda one: one.line)
