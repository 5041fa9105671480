"""Tells a command or a webhook of restarts and of the end, within a limit. What hangs or fails
there never holds the run up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from launcher.contract import typed
from launcher.contract.causes import RunState
from launcher.plan.launch_plan import LaunchPlan, Notify
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import read_restarts
from launcher.targets.subprocesses.short_command import ask

LIMIT_S = 10
TOO_LONG = f"it took longer than {LIMIT_S} s"
LOOK_S = 2.0
"""Seconds between two looks at the restarts."""
POST = """
import os, urllib.request
url, notice = os.environ["NOTICE_URL"], os.environb[b"NOTICE_JSON"]
head = {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, notice, head))
"""
OF_END = ("state", "cause", "detail", "verdict", "exit_code", "duration_s", "restarts")
"""What a notice of the end has of the run's outcome."""


@contextlib.contextmanager
def notices(run: RunFolder, plan: LaunchPlan, note: Callable[[str], None]) -> Iterator[None]:
    """Sends a notice of restarts while the block follows the run, and one of its end after that.

    ``note`` takes a line about a notice that does not come through. Raises nothing of its own.
    """
    notify, over = plan.notify, threading.Event()
    if notify is None:
        yield
        return

    def watch_restarts() -> None:
        # Ended with the block.
        while not over.wait(LOOK_S):
            with contextlib.suppress(OSError):
                restarts = read_restarts(run)
                again = sum(number > 0 for _, number in run.incarnations())
                if (count := sum(restarts.values()) + again) >= notify.restarts:
                    text = f"{count} restarts; {typed.command('report', run.run_id)}"
                    send(notify, plan, note, "restarts", text, restarts=restarts)
                    return

    if notify.restarts:
        threading.Thread(target=watch_restarts, name="notices", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        outcome = run.read_outcome()
        if outcome and (notify.when == "end" or outcome.state == RunState.FAILED.value):
            detail = outcome.summarize(outcome.failure.first if outcome.failure else None)
            text = f"{outcome.state} ({outcome.cause}); {outcome.verdict or detail}"
            record = {**outcome.to_jsonable(), "detail": detail}
            of_end = {name: record[name] for name in OF_END}
            send(notify, plan, note, "end", text.rstrip("; "), **of_end)


def send(
    notify: Notify,
    plan: LaunchPlan,
    note: Callable[[str], None],
    event: str,
    text: str,
    **more: object,
) -> None:
    """Runs the command and asks the webhook.

    Each has ``LIMIT_S``, and so has what it starts. ``note`` takes a line about one that fails.
    """
    of_run = {"run_id": plan.run_id, "job": plan.job_name, "target": plan.target}
    message = f"{plan.run_id}: {text}"
    notice = json.dumps({"text": message, "event": event, **of_run, **more})
    env = {"NOTICE_TEXT": message, "NOTICE_JSON": notice, "NOTICE_URL": notify.webhook}
    # In a process, as that ends in time whatever a name server or a slow answer does.
    post = (sys.executable, "-I", "-c", POST) if notify.webhook else ()
    run = ("sh", "-c", notify.command) if notify.command else ()
    for name, words in (("command", run), ("webhook", post)):
        if words and (why := _run(words, {**os.environ, **env})):
            note(f"notify.{name} failed: {why}")


def _run(words: tuple[str, ...], env: dict[str, str]) -> str:
    """Why a command failed; empty if it did not."""
    try:
        end = ask(("timeout", "--kill-after=1", str(LIMIT_S), *words), LIMIT_S + 2, env=env)
    except (OSError, ValueError) as error:
        return str(error)
    # ``timeout`` has killed itself with a command that did not end when it was asked to.
    if end is None or end.code in (124, -signal.SIGKILL):
        return TOO_LONG
    last = (end.err or end.out).strip().rpartition("\n")[2]
    return f"exit code {end.code}{last and f': {last}'}" if end.code else ""
