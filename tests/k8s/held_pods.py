"""What makes the pods of a hold for the server of the tests: containers of this machine."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

from launcher.contract import protocol
from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.k8s.pods_on_docker import Pods
from tests.launcher.cluster_run import INDEX
from tests.launcher.fake_cluster import FakeCluster, ended, pod


class Controller:
    """Makes and removes the two pods of a hold, and has the server know their logs."""

    def __init__(self, server: FakeCluster, folder: Path, name: str = "dev") -> None:
        """``folder`` has the launcher's run folders in ``runs``; ``name`` is the hold's."""
        self._server, self._folder, self._name = server, folder, name
        self._pods: Pods | None = None
        self.running: dict[int, tuple[str, Any]] = {}
        self._entered: list[subprocess.Popen[bytes]] = []
        self._made = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(0.1):
            is_wanted = ("jobs", self._name) in self._server.objects
            if is_wanted and self._pods is None:
                run = RunFolder(next((self._folder / "runs").glob(f"{self._name}-*")))
                plan = run.read_plan()
                manifest = KubernetesTarget(run.path.parent).render(plan)
                self._pods = Pods(plan, manifest, self._folder / "cluster")
                for index in (0, 1):
                    self.start(index)
            elif not is_wanted:
                for index in [*self.running]:
                    self.lose(index)

    def start(self, index: int, *, elsewhere: bool = False) -> None:
        assert self._pods is not None
        self._made += 1
        name = f"{self._name}-{index}-{self._made:05d}"
        container = self._pods.start(index, elsewhere=elsewhere)
        self.running[index] = name, container
        labels = {protocol.LABEL_RUN_ID: self._pods.plan.run_id, INDEX: str(index)}
        item = pod(name, labels)
        item["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{self._made:02d}Z"
        self._server.put("pods", item)
        pipe = subprocess.PIPE

        def enter(argv: list[str]) -> subprocess.Popen[bytes]:
            words = ["docker", "exec", "--interactive", container.id, *argv]
            self._entered.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe))
            return self._entered[-1]

        self._server.programs[name] = enter
        threading.Thread(target=self._bring_log, args=(name, container), daemon=True).start()

    def _bring_log(self, name: str, container: Any) -> None:
        for line in container.logs(stream=True, follow=True, timestamps=True):
            stamp, _, text = line.decode().rstrip("\n").partition(" ")
            self._server.log(name, (stamp, text))
        self._server.log(name, ended=True)

    def lose(self, index: int) -> None:
        name, container = self.running.pop(index)
        container.kill()
        del self._server.programs[name]
        labels = self._server.objects["pods", name]["metadata"]["labels"]
        self._server.put("pods", pod(name, labels, phase="Failed", state=ended(137)))
        self._server.remove("pods", name)

    def cut(self) -> None:
        """The API server goes away, and takes the programs in pods that go through it along."""
        self._server.away = True
        for program in self._entered:
            program.kill()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        if self._pods is not None:
            self._pods.close()
