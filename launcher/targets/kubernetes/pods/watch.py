"""Knows a run's pods as they are now, also those that are gone: reads a list from the cluster, and
then changes."""

from __future__ import annotations

import threading
import time

from launcher.contract.causes import NodeState
from launcher.contract.errors import TargetError
from launcher.contract.waits import RETRY_S
from launcher.targets.kubernetes.api.cluster import OPENED, Cluster, Object
from launcher.targets.kubernetes.api.refusals import GONE, ApiError
from launcher.targets.kubernetes.pods.states import PodView, parse_pod

NONSENSE = (ValueError, LookupError, TypeError, AttributeError)
"""What reading an answer raises that is no server's: a proxy in between may answer anything."""


class PodWatch:
    """Holds the newest view of every pod of a run, also of pods that are gone.

    ``masters`` is 1 if the first node is a Master. Reads in a thread of its own: a list, then each
    change since that list's version. A server forgets versions after minutes; then it is a list
    again.
    """

    def __init__(self, cluster: Cluster, selector: str, masters: int = 0) -> None:
        self._cluster, self._selector, self._masters = cluster, selector, masters
        self._lock = threading.Lock()
        self._pods: dict[str, PodView] = {}
        self._gone: set[str] = set()
        self._deleted: set[str] = set()
        """Uids of gone pods whose last state the watch has reported."""
        self._stopped = threading.Event()
        self.error: TargetError | None = None
        """Why the cluster cannot be asked at the moment; None while it answers."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Does not block, and starts once."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Ends at the next event, or with this process."""
        self._stopped.set()

    def pods(self) -> tuple[PodView, ...]:
        """Pods that are there, oldest first."""
        with self._lock:
            gone = set(self._gone)
        return tuple(pod for pod in self.all_pods() if pod.uid not in gone)

    def all_pods(self) -> tuple[PodView, ...]:
        """All pods, also gone ones, by their last views, oldest first."""
        with self._lock:
            pods = list(self._pods.values())
        return tuple(sorted(pods, key=lambda pod: (pod.created, pod.name)))

    def wait_endings(self, limit_s: float) -> None:
        """Waits until the watch has reported the last states of pods that are no longer listed."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.error is None:
            with self._lock:
                unreported = self._gone - self._deleted
                late = any(self._pods[uid].state is not NodeState.EXITED for uid in unreported)
            if not late or not self._thread.is_alive():
                return
            self._stopped.wait(0.05)

    def refresh(self) -> tuple[PodView, ...]:
        """Asks for the pods now; events may be late. Raises ``TargetError``."""
        self._list()
        return self.pods()

    def find(self, uid: str) -> PodView | None:
        """The newest view of a pod; None if it is gone."""
        with self._lock:
            return None if uid in self._gone else self._pods.get(uid)

    def _run(self) -> None:
        version = ""
        while not self._stopped.is_set():
            try:
                version = version or self._list()
                for event in self._cluster.watch_pods(self._selector, version):
                    self.error = None
                    version = self._apply(event) or version
                    if self._stopped.is_set():
                        return
            except TargetError as error:
                if isinstance(error, ApiError) and error.status == GONE:
                    version = ""
                    continue
                self.error = error
            except NONSENSE as error:
                self.error = _nonsense(error)
                version = ""
            else:
                continue
            self._stopped.wait(RETRY_S)

    def _list(self) -> str:
        try:
            listed = self._cluster.list_objects("v1", "Pod", self._selector)
            views = [parse_pod(pod, self._masters) for pod in listed["items"]]
            version = str(listed["metadata"]["resourceVersion"])
        except NONSENSE as error:
            raise _nonsense(error) from error
        with self._lock:
            self._gone |= set(self._pods) - {view.uid for view in views}
            self._pods |= {view.uid: view for view in views}
        return version

    def _apply(self, event: Object) -> str:
        item = event["object"]
        if event["type"] not in ("BOOKMARK", OPENED):
            view = parse_pod(item, self._masters)
            with self._lock:
                self._pods[view.uid] = view
                if event["type"] == "DELETED":
                    self._gone.add(view.uid)
                    self._deleted.add(view.uid)
        return str(item["metadata"].get("resourceVersion", ""))


def _nonsense(error: Exception) -> TargetError:
    return TargetError(f"the cluster's answer makes no sense: {error!r}")
