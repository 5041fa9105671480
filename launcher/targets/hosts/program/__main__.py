"""On a host: one conversation with a launcher, or one node's keeper; refuses what is meant for
another machine.

Each conversation starts a Python, so what only some calls need is imported when they come.
"""

from __future__ import annotations

import os
import sys
from signal import alarm

from launcher.targets.hosts.program import messages, session
from launcher.targets.hosts.program.messages import (
    IDLE_LIMIT_S,
    MAGIC,
    Answered,
    Record,
    Refusal,
    RequestError,
    parse_json,
    read_frame,
    write_frame,
)


def main(argv: list[str]) -> int:
    """Returns when the launcher closes the conversation, or the node has ended."""
    if argv[1:2] == ["keep"]:
        # Ended by the session that started this: it sends the spec at once.
        spec = parse_json(sys.stdin.buffer.read())
        session.module("keeper").NodeKeeper(spec, [int(word) for word in argv[2:]]).run()
        return 0
    converse()
    return 0


def converse() -> None:
    """Answers one call after another; a watch goes on until the launcher ends it."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    stdout.write(MAGIC)
    stdout.flush()
    try:
        while True:
            alarm(int(IDLE_LIMIT_S))
            try:
                frame = read_frame(stdin)
            except ValueError:
                return
            if frame is None:
                return
            asked, blob = frame
            assert isinstance(asked, messages.FunctionCall), type(asked)
            alarm(int(asked.limit_s) + 60)
            write_frame(stdout, refuse_as_another(asked.machine) or answer(asked, blob))
    finally:
        session.end()


def refuse_as_another(wanted: str) -> Refusal | None:
    """The refusal of a machine that is not the ``wanted`` one; None if it is, or any will do."""
    if not wanted:
        return None
    from launcher.contract.process_stat import name_machine

    if (own := name_machine()) == wanted:
        return None
    return Refusal(
        error=f"it is another machine ({own}) than the run's ({wanted})",
        fix="correct the address that its name leads to: ~/.ssh/config, /etc/hosts",
    )


def answer(asked: messages.FunctionCall, blob: bytes) -> Record:
    """What the called function returns, or a refusal."""
    module, _, name = asked.function.partition(".")
    brought = {asked.blob: blob} if asked.blob else {}
    try:
        told = getattr(session.module(module), name)(**asked.arguments, **brought)
    except RequestError as error:
        return Refusal(error=str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return Refusal(error=f"{where}{error.strerror or error}")
    return Answered(value=told)


if __name__ == "__main__":
    # sys.argv[0] is the folder that the loader, or the keeper's command line, names.
    sys.exit(main([os.path.abspath(sys.argv[0]), *sys.argv[1:]]))
