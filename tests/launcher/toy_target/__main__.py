"""``launcher`` with one target more: ``python -m tests.launcher.toy_target run ... --on toy``."""

from launcher.__main__ import main
from tests.launcher.toy_target.target import register

register()
main()
