"""``hvd.elastic.run``: a training function that goes on from the last commit."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from fabric_train.horovod import context
from fabric_train.horovod.elastic.keeper import Keeper
from fabric_train.horovod.errors import HorovodInternalError
from fabric_train.preemption import EXIT_PREEMPTED, PreemptedError

WAIT_FOR_THE_END_S = 60.0
"""How long a process that lost a peer waits for its starter to end it.

If it ended at once, it would look like the process that failed first.
"""


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates ``func(state, ...)``, so that it begins with the state of the last commit.

    If CHECKPOINT_DIR holds a commit of an earlier start, rank 0 loads it, and all ranks call the
    reset callbacks. Then all ranks get rank 0's state. A lost peer ends this
    process too, because the launcher (or torchrun) starts all of them again.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        context.get()
        if state._keeper is None:
            state._keeper = Keeper()
            if state._keeper.open(state.load_commit):
                state.on_reset()
        keeper = state._keeper
        try:
            state.sync()
            state.save()
            return func(state, *args, **kwargs)
        except HorovodInternalError as error:
            keeper.close()
            _wait_for_the_end(error)
            raise
        except PreemptedError:
            _exit_preempted()
        finally:
            keeper.close()

    return wrapper


def _wait_for_the_end(error: HorovodInternalError) -> None:
    if context.get().engine.is_alive:
        return  # the ranks asked for different things: a mistake of the script
    print(f"horovod: {error}; this process waits to be restarted", file=sys.stderr, flush=True)
    time.sleep(WAIT_FOR_THE_END_S)


def _exit_preempted() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_PREEMPTED)  # the other ranks may be gone, so wait for nothing
