"""``python -m train``: parse, then train; alone or as a worker of torchrun.

Exit codes: 0 success, 1 the training failed, 2 the input is wrong, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from train.config import parse_config
from train.errors import InputError
from train.worker_env import parse_worker_env


def main(arguments: Sequence[str]) -> int:
    """Runs the training and gives its exit code; an error in the training itself is raised."""
    try:
        config = parse_config(arguments)
        env = parse_worker_env(os.environ)

        # Imported here: torch takes seconds, and a refused option should not have to wait for it.
        from torch.distributed.elastic.multiprocessing.errors import record

        from train.loop import train

        # record leaves the exception in the error.json that torchrun and the launcher read.
        record(train)(config, env)
    except InputError as error:
        # In one write: print would let other ranks' lines in before its newline.
        sys.stderr.write(f"train: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("train: interrupted\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
