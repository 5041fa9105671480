"""What ends a command of the launcher ends what it has started."""

import os
import signal

import pytest

from launcher.follow.signals import raise_on_signals


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_a_second_one_does_not_disturb_the_cleaning_up(signum):
    before, cleaned = signal.getsignal(signum), []

    def end() -> None:
        with raise_on_signals():
            try:
                os.kill(os.getpid(), signum)
            finally:
                os.kill(os.getpid(), signum)
                cleaned.append("up")

    with pytest.raises(KeyboardInterrupt):
        end()
    assert (signal.getsignal(signum), cleaned) == (before, ["up"])
