"""Data-parallel training with Lightning Fabric; its parts can be imported by other scripts.

Never imports ``launcher``: what both need is repeated in ``worker_env.py`` and held equal by a
test, so that the training runs where the launcher is not installed.
"""
