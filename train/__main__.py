"""``python -m train``: its exit codes; parses, then trains, alone or as a worker of torchrun.

Exit codes: 0 success, 1 the training failed, 2 the input is wrong, 130 interrupted, 143 preempted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fabric_train.checkpointing.lineage import FencedError
from fabric_train.errors import InputError
from fabric_train.loop.preemption import PreemptedError, exit_on_sigterm, leave
from fabric_train.worker_env import NODE_DIR, parse_worker_env
from train.config import VERBS, parse_config


def main(arguments: Sequence[str]) -> int:
    """Runs the training and returns its exit code; raises an error of the training itself."""
    try:
        verb, *rest = arguments if arguments and arguments[0] in VERBS else ("fit", *arguments)
        config = parse_config(rest)
        env = parse_worker_env(os.environ)

        # Imported here, because torch takes seconds, and a refused option must answer at once.
        from torch.distributed.elastic.multiprocessing.errors import record

        from train.loop import train

        def run() -> None:
            try:
                train(config, env, verb=verb)
            except (PreemptedError, FencedError) as error:
                leave(f"train: {error}")

        # record writes the exception to error.json, which torchrun and the launcher read.
        record(run)()
    except InputError as error:
        # One write, because print writes the newline separately, after other ranks' lines.
        lines = [str(error), *getattr(error, "__notes__", ())]
        sys.stderr.write("train: " + "\n  ".join(lines) + "\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("train: interrupted\n")
        return 130
    return 0


if __name__ == "__main__":
    folder = os.environ.get(NODE_DIR)
    exit_on_sigterm(Path(folder) if folder else None)
    sys.exit(main(sys.argv[1:]))
