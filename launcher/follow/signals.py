"""A signal that ends this process (Ctrl-C, SIGTERM, SIGHUP) becomes an exception, so that it cleans
up on the way out; later signals are ignored.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def raise_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise ``KeyboardInterrupt`` as SIGINT does; later ones are ignored.

    A second Ctrl-C does not interrupt the cleaning up. Only for the main thread.
    """
    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def on_signal(signum: int, frame: FrameType | None) -> None:
        for ignored in signums:
            signal.signal(ignored, signal.SIG_IGN)
        raise KeyboardInterrupt

    earlier = {signum: signal.signal(signum, on_signal) for signum in signums}
    try:
        yield
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
