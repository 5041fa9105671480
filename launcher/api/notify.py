"""Tells a command or a webhook how a run goes. What hangs or fails there never holds the run up."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping

from launcher.contract import typed
from launcher.contract.reasons import RunState
from launcher.plan.launch_plan import LaunchPlan, Notify
from launcher.runs.folder import RunFolder
from launcher.runs.node_outcomes import read_restarts
from launcher.targets.short_command import ask

LIMIT_S = 10
TOO_LONG = f"it took longer than {LIMIT_S} s"
LOOK_S = 2.0
"""Between two looks at the restarts."""


@contextlib.contextmanager
def notices(run: RunFolder, plan: LaunchPlan, note: Callable[[str], None]) -> Iterator[None]:
    """Tells of restarts while the block follows the run, and of its end after that.

    ``note`` takes a line about a notice that does not come through. Raises nothing of its own.
    """
    notify, over = plan.notify, threading.Event()
    if notify is None:
        yield
        return

    def look() -> None:
        # Ended with the block.
        while not over.wait(LOOK_S):
            with contextlib.suppress(OSError):
                restarts = read_restarts(run)
                again = sum(number > 0 for _, number in run.incarnations())
                if (count := sum(restarts.values()) + again) >= notify.restarts:
                    text = f"{run.run_id}: {count} restarts; {typed.command('report', run.run_id)}"
                    send(notify, _notice(plan, "restarts", text, restarts=restarts), note)
                    return

    if notify.restarts:
        threading.Thread(target=look, name="notices", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        outcome = run.read_outcome()
        if outcome and (notify.when == "end" or outcome.state == RunState.FAILED.value):
            told = outcome.to_jsonable()
            text = f"{run.run_id}: {outcome.state} ({outcome.reason})"
            text += f"; {outcome.verdict or outcome.detail}".rstrip("; ")
            names = ("state", "reason", "detail", "verdict", "exit_code", "duration_s", "restarts")
            send(notify, _notice(plan, "end", text, **{name: told[name] for name in names}), note)


def _notice(plan: LaunchPlan, event: str, text: str, **told: object) -> Mapping[str, object]:
    of_run = {"run_id": plan.run_id, "job": plan.job_name, "target": plan.target}
    return {"text": text, "event": event, **of_run, **told}


def send(notify: Notify, notice: Mapping[str, object], note: Callable[[str], None]) -> None:
    """Runs the command and asks the webhook; blocks for some ``LIMIT_S`` at most."""
    if notify.command and (why := _in_time(_run, notify.command, notice)):
        note(f"notify.command failed: {why}")
    if notify.webhook and (why := _in_time(_post, notify.webhook, notice)):
        note(f"notify.webhook failed: {why}")


def _in_time(
    tell: Callable[[str, Mapping[str, object]], str], whom: str, notice: Mapping[str, object]
) -> str:
    """Why somebody was not told. In a thread: a name server, or a server that says a byte now and
    then, knows no limit."""
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(tell(whom, notice)), daemon=True)
    thread.start()
    thread.join(LIMIT_S + 3)
    return said[0] if said else TOO_LONG


def _run(line: str, notice: Mapping[str, object]) -> str:
    told = {"NOTICE_TEXT": str(notice["text"]), "NOTICE_JSON": json.dumps(notice)}
    # What the line has started ends with it.
    words = ("timeout", "--kill-after=1", str(LIMIT_S), "sh", "-c", line)
    try:
        end = ask(words, LIMIT_S + 2, env={**os.environ, **told})
    except OSError as error:
        return str(error)
    if end is None or end.code in (124, 137):
        return TOO_LONG
    last = (end.err or end.out).strip().rpartition("\n")[2]
    return f"exit code {end.code}{last and f': {last}'}" if end.code else ""


def _post(url: str, notice: Mapping[str, object]) -> str:
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(notice).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S):
            return ""
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error)
