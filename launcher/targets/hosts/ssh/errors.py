"""Turns messages of the ssh client into what is wrong with a host and the fix to type. Pure."""

from __future__ import annotations

import re

from launcher.contract.errors import name_ending

SSH_FAILED = 255
"""The client's own exit code; any other is the remote command's."""

FULL = "No space left on device|Disk quota exceeded"
_TABLE = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": (
        "its host key is another one than before: a new machine at that address, or an attacker",
        "ask its administrator; if the key is right: {forget}, then ssh {way}",
    ),
    "Host key verification failed|host key is known|No matching host key": (
        "its host key is not known here",
        "compare the fingerprint once: ssh {way}; or accept new keys: --accept-new-host-keys",
    ),
    "Permission denied|Too many authentication failures|No more authentication methods": (
        "it does not accept any key of yours (a password is never asked for)",
        "ssh-copy-id {way}, or load your key: ssh-add; to try: ssh -o BatchMode=yes {way} true",
    ),
    "Could not resolve hostname": (
        "its name is not resolved",
        "correct the name, or give it a HostName in ~/.ssh/config",
    ),
    "Connection refused": (
        "nothing listens at its ssh port",
        "start its sshd, or correct port: in the inventory",
    ),
    "No route to host|Network is unreachable|Connection timed out|Operation timed out|"
    "Timeout, server|timed out": (
        "it does not answer",
        "is it on? to try: ssh -v {way} true",
    ),
    "Bad owner or permissions|Bad configuration option|terminating, .* bad configuration|"
    "Can't open user config file": (
        "ssh does not accept its configuration",
        "see the message, and: ssh -G {way}",
    ),
    "kex_exchange_identification|Connection closed by|Connection reset by|"
    "Exceeded MaxStartups|mux_client": (
        "its sshd closed the connection before the log-in was done",
        "is it overloaded, or MaxStartups/MaxSessions of its sshd_config too small?",
    ),
}
"""By a pattern in the client's message: what is wrong, and the fix."""


_FORGET = re.compile(r"ssh-keygen -f .* -R .*")
"""What Debian's ssh says to type: known hosts may have the key under another name."""


def explain(name: str, exit_code: int, printed: str, entering: str = "") -> tuple[str, str]:
    """What is wrong, and the fix, after a session ended without an answer; ``printed`` is stderr.

    ``entering`` is the command that leads to the host, where more than its name is needed.
    """
    printed, entering = printed.strip(), entering or f"ssh {name}"
    first = f"an ssh session: {entering} python3 --version"
    last = printed.splitlines()[-1].strip() if printed else ""
    # csh says it with exit code 1. Start-up files may lack other commands.
    if exit_code == 127 or re.search("(?i)python3: command not found", printed):
        return (
            f"{name}: has no python3 in the PATH of an ssh session",
            # Not python: of the inventory, which names the Python of the training.
            f"install python3, 3.9 or newer, there, or put it first on PATH in {first} ({last})",
        )
    if old := re.search(r"python3 is [\d.]+ there, [\d.]+ is needed", printed):
        return (
            f"{name}: {old[0]}",
            f"install a newer python3 there, and have it first on PATH in {first}",
        )
    for pattern, (what, fix) in _TABLE.items():
        # With any other code the words are not ssh's: a folder's permission may be denied.
        if exit_code == SSH_FAILED and re.search(pattern, printed):
            detail = "" if "known" in what or "key" in what else f" ({last})" if last else ""
            forget = _FORGET.search(printed)
            way = entering.removeprefix("ssh ")
            forgetting = forget[0].strip() if forget else f"ssh-keygen -R {name}"
            return f"{name}: {what}{detail}", fix.format(way=way, forget=forgetting)
    if re.search(FULL, last):
        return f"{name}: {last}", f"make room there: {entering} df -h"
    if exit_code != SSH_FAILED and last:
        return f"{name}: the remote end failed: {last}", f"to try: {entering} python3 --version"
    silent = " and printed nothing, as when the network is cut" if exit_code == SSH_FAILED else ""
    return (
        f"{name}: ssh ended with {name_ending(exit_code)}{f': {last}' if last else silent}",
        f"to try: ssh -v {entering.removeprefix('ssh ')} true",
    )
