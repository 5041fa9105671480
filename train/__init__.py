"""The shipped training program, ``python -m train``, on top of ``fabric_train``.

Never imports ``launcher``: it also runs where the launcher is not installed.
"""
