"""A run's name."""

from __future__ import annotations

import os


def new_run_id(job_name: str) -> str:
    """``digits-3f9a01``: the job's name and six hexadecimal digits by chance."""
    return f"{job_name}-{os.urandom(3).hex()}"
