"""What makes the pods of jobs for the server of the tests: containers of this machine."""

import subprocess
import threading
from base64 import b64decode
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from launcher.contract import protocol
from launcher.runs.folder import RunFolder
from tests.k8s.pods_on_docker import Pods
from tests.launcher.cluster_run import INDEX
from tests.launcher.fake_cluster import FakeCluster, ended, pod

KUBELET_S = 0.1
GRACE_S = 10


class Controllers:
    """A controller for each job that comes to the server, of runs and of holds alike."""

    def __init__(self, server: FakeCluster, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._of: dict[str, Controller] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(KUBELET_S):
            for (kind, name), item in [*self._server.objects.items()]:
                if kind == "jobs" and (uid := item["metadata"]["uid"]) not in self._of:
                    self._of[uid] = Controller(self._server, self._folder, name)

    def replace(self, run_id: str, index: int) -> None:
        """A pod of a run is lost, and the next one comes in its place."""
        (one,) = (one for one in self._of.values() if one.run_id == run_id)
        one.lose(index)
        one.start(index)

    def left(self) -> list[str]:
        """Pods that run."""
        return [name for one in self._of.values() for name in one.at_work()]

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        for controller in self._of.values():
            controller.close()


class Controller:
    """Makes and removes the pods of a job, and has the server know their logs and their ends."""

    def __init__(self, server: FakeCluster, folder: Path, name: str = "dev") -> None:
        """``folder`` has the launcher's run folders in ``runs``; ``name`` is the job's."""
        self._server, self._folder, self._name = server, folder, name
        self._pods: Pods | None = None
        self.running: dict[int, tuple[str, Any]] = {}
        self._codes: dict[int, int] = {}
        self._uid, self._is_over = "", False
        self._log_lock, self._told = threading.Lock(), Counter[str]()
        self._complete: set[str] = set()
        self._entered: list[subprocess.Popen[bytes]] = []
        self._made = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def run_id(self) -> str:
        return self._pods.plan.run_id if self._pods is not None else ""

    def _run(self) -> None:
        while not self._closed.wait(KUBELET_S):
            job = self._server.objects.get(("jobs", self._name))
            if job is not None and self._uid not in ("", job["metadata"]["uid"]):
                job = None
            wanted = 0 if job is None else int(job["spec"]["parallelism"])
            if job is not None and self._pods is None:
                self._uid = job["metadata"]["uid"]
                self._pods = self._make(job)
                for index in range(wanted):
                    self.start(index)
            elif self._pods is not None:
                for index in [*self.running]:
                    if index >= wanted:
                        self.lose(index, GRACE_S)
                    else:
                        self._look(index)
                if job is not None and not self._is_over and len(self._codes) == wanted:
                    self._end(job)

    def _make(self, job: dict[str, Any]) -> Pods:
        run_id = job["metadata"]["labels"][protocol.LABEL_RUN_ID]
        plan = RunFolder(self._folder / "runs" / run_id).read_plan()
        kinds = ("configmaps", "secrets")
        given = [one for (kind, _), one in self._server.objects.items() if kind in kinds]
        own = [o for o in given if o["metadata"]["labels"].get(protocol.LABEL_RUN_ID) == run_id]
        folder = self._folder / "cluster" / run_id
        pods = Pods(plan, SimpleNamespace(objects=[*own, job]), folder)
        for secret in (one for one in own if one["kind"] == "Secret"):
            (folder / "secret").mkdir()
            for name, data in secret["data"].items():
                path = folder / "secret" / name
                path.write_bytes(b64decode(data))
                path.chmod(0o444)  # the pod's user is another one
        return pods

    def _look(self, index: int) -> None:
        """Tells the server of a pod that has ended."""
        if (running := self.running.get(index)) is None:
            return  # the test has just removed it
        name, container = running
        container.reload()
        if index in self._codes or container.status != "exited":
            return
        self._codes[index] = code = container.attrs["State"]["ExitCode"]
        labels = self._server.objects["pods", name]["metadata"]["labels"]
        phase, why = ("Failed", "Error") if code else ("Succeeded", "Completed")
        self._end_log(name, container)
        mounts = {one["Destination"]: one["Source"] for one in container.attrs["Mounts"]}
        said = Path(mounts[protocol.TERMINATION_LOG]).read_text()
        state = ended(code, why, message=said)
        self._server.put("pods", pod(name, labels, phase=phase, state=state))

    def at_work(self) -> list[str]:
        """The names of pods whose containers run."""
        for _, container in self.running.values():
            container.reload()
        return [name for name, one in self.running.values() if one.status == "running"]

    def _end(self, job: dict[str, Any]) -> None:
        kind = "Failed" if any(self._codes.values()) else "Complete"
        job["status"] = {"conditions": [{"type": kind, "status": "True"}]}
        self._server.put("jobs", job)
        self._is_over = True

    def start(self, index: int, *, elsewhere: bool = False) -> None:
        assert self._pods is not None
        self._made += 1
        name = f"{self._name}-{index}-{self._pods.plan.run_id[-6:]}{self._made}"
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
            with self._log_lock:
                if name in self._complete:
                    return
                self._log(name, line)
                self._told[name] += 1
        self._server.log(name, ended=True)

    def _log(self, name: str, line: bytes) -> None:
        stamp, _, text = line.decode().rstrip("\n").partition(" ")
        self._server.log(name, (stamp, text))

    def _end_log(self, name: str, container: Any) -> None:
        """The rest: the engine may end the stream of a container that has ended only later."""
        lines = container.logs(timestamps=True).splitlines()
        with self._log_lock:
            self._complete.add(name)
            for line in lines[self._told[name] :]:
                self._log(name, line)
        self._server.log(name, ended=True)

    def lose(self, index: int, grace_s: int = 0) -> None:
        name, container = self.running.pop(index)
        container.stop(timeout=grace_s)
        del self._server.programs[name]
        if index not in self._codes:
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
