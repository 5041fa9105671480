"""The rules of ``launcher check``, by kind of object. Pure."""
