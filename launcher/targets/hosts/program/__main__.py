"""On a host: one conversation with a launcher, or one node's keeper; refuses what is meant for
another machine.

Each conversation starts a Python, so what only some calls need is imported when they come.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from signal import alarm

from launcher.targets.hosts.program import session
from launcher.targets.hosts.program.messages import (
    IDLE_LIMIT_S,
    MAGIC,
    Answered,
    FunctionCall,
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
        from launcher.targets.hosts.program.keeper import NodeKeeper

        # Ended by the session that started this: it sends the spec at once.
        spec = parse_json(sys.stdin.buffer.read())
        NodeKeeper(spec, [int(word) for word in argv[2:]]).run()
    else:
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
            call, blob = frame
            assert isinstance(call, FunctionCall), type(call)
            alarm(int(call.limit_s) + 60)
            write_frame(stdout, refuse_as_another(call.machine) or answer(call, blob))
    finally:
        session.end()


def refuse_as_another(wanted: str) -> Refusal | None:
    """The refusal of a machine that is not the ``wanted`` one; None if it is, or any will do."""
    if not wanted:
        return None
    from launcher.contract.process_stat import name_machine

    if (machine := name_machine()) == wanted:
        return None
    return Refusal(
        error=f"it is another machine ({machine}) than the run's ({wanted})",
        fix="correct the address that its name leads to: ~/.ssh/config, /etc/hosts",
    )


def answer(call: FunctionCall, blob: bytes) -> Record:
    """What the called function returns, or a refusal."""
    module, _, name = call.function.partition(".")
    brought = {call.blob: blob} if call.blob else {}
    try:
        function = getattr(import_module(f".{module}", __package__), name)
        return Answered(value=function(**call.arguments, **brought))
    except RequestError as error:
        return Refusal(error=str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return Refusal(error=f"{where}{error.strerror or error}")


if __name__ == "__main__":
    # sys.argv[0] is the folder that the loader, or the keeper's command line, names.
    sys.exit(main([os.path.abspath(sys.argv[0]), *sys.argv[1:]]))
