"""``python agent.pyz node-plan.json``: supervises one node; refuses a Python that is too old.
LAUNCHER_NODE_PLAN may name the file.

``python agent.pyz worker SCRIPT ...`` is how the agent itself starts a fresh worker.
``python agent.pyz attach FOLDER`` connects a person to the debugger of a node.
``python agent.pyz job ... srun ...`` is the first process of a batch job, in any Python from 3.6.
"""

import sys

OLDEST_PYTHON = (3, 10)


def main(argv: "list[str]") -> int:
    """Returns the exit code; ``argv`` is ``sys.argv``."""
    if argv[1:2] == ["job"]:
        from launcher.agent import batch_job

        return batch_job.main(argv[2:])
    if sys.version_info < OLDEST_PYTHON:
        given, wanted = (".".join(map(str, v[:2])) for v in (sys.version_info, OLDEST_PYTHON))
        sys.stderr.write(
            f"error: {sys.executable} is Python {given}, the node agent needs {wanted} or newer\n"
            "  fix: an image or environment with a newer Python, or engine: torchrun\n"
        )
        return 2
    if argv[1:2] == ["worker"]:
        from launcher.agent.worker import guard

        guard.enter_fresh(tuple(argv[2:]))
    if argv[1:2] == ["attach"]:
        from launcher.agent.worker import attach

        return attach.main(argv[2:])
    from launcher.agent.node import supervisor

    return supervisor.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
