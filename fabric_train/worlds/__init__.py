"""Training that goes on in the same processes when a node is lost or comes."""

from __future__ import annotations

from fabric_train.worlds.worlds import StateLostError as StateLostError
from fabric_train.worlds.worlds import TrainingWorld as TrainingWorld
from fabric_train.worlds.worlds import WorldLostError as WorldLostError
from fabric_train.worlds.worlds import Worlds as Worlds
