"""What four loggers hold after a training that was killed, went back, and went on in another world.

Each is read by its own reader.
"""

from pathlib import Path

import pytest

from fabric_train.errors import InputError
from fabric_train.log import Log
from fabric_train.loggers import Logger, Row, open_loggers


class Shaky(Logger):
    """Fails as often as it is told, after the first row."""

    name = "shaky"

    def __init__(self) -> None:
        super().__init__(Path())
        self.rows: list[Row] = []
        self.failures = 0

    def read(self) -> dict[str, int]:
        return {name: step for step, values in self.rows for name in values}

    def write(self, rows) -> None:
        for row in rows:
            self.rows.append(row)
            if self.failures:
                self.failures -= 1
                raise OSError("the server is away")


def test_a_logger_that_fails_is_told_once_and_gets_what_it_lacks_later():
    logger, said = Shaky(), []
    log = Log([logger], say=said.append)
    logger.failures = 2
    for step in (1, 2, 3):
        log.add(step, {"loss": step / 2})
        log.add(step, {"lr": 0.1})
        carried = log.state()
        log.commit(step)
        log.join(None)
    assert [step for step, _ in logger.rows] == [1, 2, 3]
    assert [step for step, _ in carried] == [1, 2, 3], "nothing was confirmed before the third"
    assert "the server is away" in said[0]
    assert said[1:] == ["shaky takes rows again"]
    log.add(4, {"loss": 2.0})
    log.close()
    assert len(logger.rows) == 3, "no checkpoint covers the fourth"


def test_a_start_hands_over_what_its_checkpoint_carried_and_the_logger_lacks():
    logger = Shaky()
    logger.rows = [(1, {"loss": 0.5, "lr": 0.1}), (2, {"loss": 0.4})]  # killed within the second
    log = Log([logger])
    log.restore([[2, {"loss": 0.4, "lr": 0.1}], [3, {"loss": 0.3}]], 3)
    log.close()
    assert logger.rows[2:] == [(2, {"lr": 0.1}), (3, {"loss": 0.3})]


def test_a_logger_that_is_not_there_is_told_with_the_command_that_installs_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [logger.name for logger in open_loggers("csv, ", tmp_path)] == ["csv"]
    with pytest.raises(InputError, match="pip install mlflow-skinny"):
        open_loggers("csv,mlflow", tmp_path)
    with pytest.raises(InputError, match="is none of csv, tensorboard"):
        open_loggers("tensorbord", tmp_path)
    assert not list(tmp_path.iterdir())
