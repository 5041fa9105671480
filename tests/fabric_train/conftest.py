from tests.training import clean, finish, processes, wait_until

__all__ = ["clean", "finish", "processes", "wait_until"]
