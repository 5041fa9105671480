from __future__ import annotations

import pytest

from launcher.contract.errors import ExitCode
from launcher.contract.reasons import (
    EXIT_CODE_OF_REASON,
    FAULT_OF_REASON,
    STATE_OF_REASON,
    TERMINAL_STATES,
    Reason,
    RunState,
)


@pytest.mark.parametrize("table", [STATE_OF_REASON, EXIT_CODE_OF_REASON, FAULT_OF_REASON])
def test_tables_of_reasons_are_total(table: dict[Reason, object]) -> None:
    assert set(table) == set(Reason)


def test_every_reason_ends_a_run() -> None:
    assert {*RunState} - {RunState.RUNNING} == TERMINAL_STATES


@pytest.mark.parametrize("reason", Reason)
def test_only_success_exits_with_zero(reason: Reason) -> None:
    assert (EXIT_CODE_OF_REASON[reason] == 0) == (STATE_OF_REASON[reason] is RunState.SUCCEEDED)


@pytest.mark.parametrize("reason", Reason)
def test_what_is_worth_a_retry_exits_at_128_or_above(reason: Reason) -> None:
    permanent = {
        Reason.TRAINING_FAILED,
        Reason.RESTARTS_EXHAUSTED,
        Reason.OUT_OF_MEMORY,
        Reason.BAD_INPUT,
        Reason.TARGET_UNREACHABLE,
    }
    code = EXIT_CODE_OF_REASON[reason]
    assert (1 <= code < 128) == (reason in permanent)
    assert code in set(ExitCode)
