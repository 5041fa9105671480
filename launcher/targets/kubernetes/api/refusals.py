"""What an API server says of pods that it refuses: whether that lasts, and the fix. Pure."""

from __future__ import annotations

import re


def is_for_good(message: str) -> bool:
    """Whether the server refuses a pod in a way that only a person can change."""
    # Webhooks may refuse pods without an owner, or know no dry run; the job's own may pass. A
    # quota lets pods in when others have ended, or once it has been counted.
    passing = "webhook", "exceeded quota", "status unknown for quota"
    is_refused = "is forbidden: " in message or "is invalid: " in message
    return is_refused and not any(words in message for words in passing)


def find_fix(message: str, namespace: str, kubectl: str = "kubectl") -> str:
    """The fix for a pod that the server refused; empty if none is known."""
    if "exceeded quota" in message or "failed quota" in message:
        return f"{kubectl} describe quota -n {namespace}; then resources: of the job"
    if "PodSecurity" in message:
        return f"take out of the job what it names, or {kubectl} describe namespace {namespace}"
    if account := re.search(r'serviceaccount "([^"]+)" not found', message):
        make = f"{kubectl} create serviceaccount {account[1]} -n {namespace}"
        return f"{make}, or kubernetes.service_account of the job"
    if "LimitRange" in message or "per Container" in message or "per Pod" in message:
        return f"{kubectl} describe limits -n {namespace}; then resources: of the job"
    return ""
