"""What happened to a run's pods and job, for its report: controllers delete pods, and with them
what their statuses say.

``PodRecorder`` saves it while pods are there; ``bring_story`` asks for the job's conditions and
events where no folder of the run is at hand.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.errors import DiskFullError, name_exit_code
from launcher.contract.node_outcome import parse_node_outcome
from launcher.contract.reasons import NodeState, reason_of_exit_code
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import POD_LEDGER, POD_SOURCE, RunFolder, make_folders, write_atomically
from launcher.runs.report import NodeReport, Said, Story, write_story
from launcher.targets.kubernetes.api import ApiError
from launcher.targets.kubernetes.logs import LogSource, containers_of
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.pod_states import (
    Ending,
    Object,
    PodView,
    event_time,
    message_of,
    seconds_of,
    section,
)

if TYPE_CHECKING:
    from launcher.targets.kubernetes.cluster_job import ClusterJob

POD_FILE = "pod.json"
"""In a node's folder: which container's output lies there."""
AGENT_SAYS = "[agent] "
NOT_NEWS = f"{AGENT_SAYS}health: "
ORDINARY_ENDS = ("", "Error", "Completed")
"""Kubernetes' words for an end that add nothing to its exit code."""
TOLD_BY_PODS = ("Scheduled", "Pulling", "Pulled", "Created", "Started")
TOLD_BY_THE_JOB = ("SuccessfulCreate", "SuccessfulCreatePod", "SuccessfulCreateService")
"""Reasons of events that say what the objects say themselves."""


class Incarnations:
    """Numbers the containers of each node, also those that earlier launchers have seen."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._seen: dict[int, list[tuple[str, int]]] = {}

    def _of(self, index: int) -> list[tuple[str, int]]:
        """The containers of a node in their order: those with output in the run folder first."""
        if index not in self._seen:
            found = self._seen[index] = []
            while (path := self._run.node_dir(index, len(found)) / POD_FILE).is_file():
                told = json.loads(path.read_text())
                found.append((told["uid"], told["restarts"]))
        return self._seen[index]

    def number(self, index: int, uid: str, restarts: int) -> int:
        """How many containers the node had before this one."""
        seen = self._of(index)
        if (uid, restarts) not in seen:
            seen.append((uid, restarts))
        return seen.index((uid, restarts))

    def upcoming(self, index: int) -> int:
        """The number that the next container gets."""
        return len(self._of(index))

    def newest(self, index: int) -> int:
        """The number of the last one seen."""
        return max(len(self._seen.get(index, ())) - 1, 0)


class PodRecorder:
    """Saves what is new about a run's pods each time it is asked. Idempotent over processes."""

    def __init__(self, run: RunFolder, incarnations: Incarnations, clock: Clock) -> None:
        self._run, self._incarnations, self._clock = run, incarnations, clock
        self._outcomes: set[LogSource] = set()
        self._done: set[str] = set()
        """Uids of pods that are gone and fully recorded."""
        self._path = run.path / protocol.LEDGER_DIR / POD_LEDGER
        self._told: set[str] = _read_keys(self._path)
        self._lock = threading.Lock()

    def save(self, pods: Iterable[PodView], there: Iterable[PodView]) -> None:
        """``pods`` are all that were seen, oldest first; ``there`` those that are not gone."""
        left = {pod.uid for pod in there}
        for pod in pods:
            index = pod.node_index
            if index is None or pod.uid in self._done:
                continue
            number = self._incarnations.upcoming(index)
            for source, ending in containers_of(pod):
                number = self._incarnations.number(index, pod.uid, source.restarts)
                self._save_container(source, self._run.node_dir(index, number), ending)
            self._tell(_moments(pod), index, number)
            if pod.uid not in left:
                gone = (f"{pod.uid}/gone", self._clock.wall(), f"pod {pod.name} is gone")
                self._tell([gone], index, number)
                if pod.state is NodeState.EXITED:
                    self._done.add(pod.uid)

    def hear(self, source: LogSource, index: int, number: int, stamp: str, text: str) -> None:
        """A line of a container's log. What the agent says there is recorded nowhere else."""
        if text.startswith(AGENT_SAYS) and not text.startswith(NOT_NEWS):
            key = f"{source.uid}/{source.restarts}/{stamp}/{text}"
            said = text.removeprefix(AGENT_SAYS)
            self._tell([(key, seconds_of(stamp), f"agent: {said}")], index, number)

    def _save_container(self, source: LogSource, folder: Path, ending: Ending | None) -> None:
        """Saves which container's output lies in a node's folder, and its outcome there."""
        # A full disk here does not stop following a run that goes on there.
        with contextlib.suppress(OSError, DiskFullError):
            if not (folder / POD_FILE).exists():
                make_folders((str(folder),))
                write_atomically(folder / POD_FILE, json.dumps(asdict(source)))
            if ending is not None and source not in self._outcomes:
                self._outcomes.add(source)
                if parse_node_outcome(ending.message):
                    write_atomically(folder / protocol.OUTCOME_FILE, ending.message)

    def _tell(self, moments: Iterable[tuple[str, float, str]], index: int, number: int) -> None:
        with self._lock:
            for key, at, text in moments:
                if key in self._told:
                    continue
                self._told.add(key)
                event = {
                    "schema": protocol.LEDGER_SCHEMA,
                    "source": POD_SOURCE,
                    "node_index": index,
                    "incarnation": number,
                    "event": POD_SOURCE,
                    "at": at,
                    "monotonic_s": at,
                    "key": key,
                    "text": text,
                }
                with contextlib.suppress(OSError, DiskFullError):
                    make_folders((str(self._path.parent),))
                    with self._path.open("a") as file:
                        file.write(json.dumps(event) + "\n")


def _moments(pod: PodView) -> Iterator[tuple[str, float, str]]:
    """What happened to a pod and when: a key, seconds since the epoch, words."""
    yield f"{pod.uid}/made", seconds_of(pod.created), f"pod {pod.name} made"
    for stamp, words in pod.conditions:
        yield f"{pod.uid}/{words}", seconds_of(stamp), f"pod {pod.name} {words}"
    for source, ending in containers_of(pod):
        key = f"{pod.uid}/{source.restarts}"
        present = pod.started if source.restarts == pod.restarts else ""
        started = ending.started if ending else present
        if started:
            yield f"{key}/started", seconds_of(started), f"container of {pod.name} started"
        if ending is not None:
            word = "" if ending.word in ORDINARY_ENDS else ending.word
            if outcome := parse_node_outcome(ending.message):
                word = outcome.reason.value
                if first := outcome.first:
                    words = f"rank {first.rank} ended: {first.exception or first.cause}"
                    yield f"{key}/first", first.failed_at, words
            why = f" ({word})" if word else ""
            at = seconds_of(ending.finished) or seconds_of(pod.created)
            code = name_exit_code(ending.exit_code)
            yield f"{key}/ended", at, f"container of {pod.name} ended: exit code {code}{why}"


def _read_keys(path: Path) -> set[str]:
    """What is told already, by this process or another."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                found.add(json.loads(line)["key"])
    return found


# -- a report without a folder of the run --------------------------------------------------------


def bring_story(run: RunFolder, plan: LaunchPlan, job: ClusterJob, claim: Path | None) -> None:
    """Puts what the cluster has of a run into its folder here, and what the claim has.

    ``claim`` is the root of the claim of ``kubernetes.run`` as this machine sees it; None where it
    does not, unless it is mounted here as in the pods. Raises ``TargetError``.
    """
    events: list[Object] = []
    # Users who may not read logs or events get a report without them.
    with contextlib.suppress(ApiError):
        job.pods.read_logs()
    with contextlib.suppress(ApiError):
        events = job.cluster.list_objects("v1", "Event", "")["items"]
    if (folder := _folder_on_claim(plan, claim)) is not None:
        _link_all(folder, run.path)
    pods = (pod for pod in job.pods.read() if pod.node_index is not None)
    nodes = {pod.uid: tell_node(pod, job.pods.number_of(pod)) for pod in pods}
    places = {uid: node.place for uid, node in nodes.items()}
    said = tell_job(plan.job_name, job.read(), events, places)
    write_story(run, Story(said=tuple(said), nodes=tuple(nodes.values())))


def tell_job(
    name: str,
    job: Object | None,
    events: Iterable[Object],
    places: Mapping[str, tuple[int, int]],
) -> list[Said]:
    """The job's conditions and events, oldest first. Pure.

    ``places`` are node index and incarnation of the pods that are there, by uid.
    """
    found = []
    if job is not None:
        made_at = seconds_of(section(job, "metadata").get("creationTimestamp") or "")
        found.append(Said(at=made_at, place=None, text="job made"))
        for condition in section(job, "status").get("conditions") or ():
            if condition.get("status") == "True" and (stamp := condition.get("lastTransitionTime")):
                why = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
                text = f"job {condition['type']}{f' ({why})' if why else ''}"
                found.append(Said(at=seconds_of(stamp), place=None, text=text))
    began_at = found[0].at if found else 0.0
    uid = section(job or {}, "metadata").get("uid") or ""
    of_events = (said for event in events for said in tell_event(event, name, uid, places))
    # Events of an earlier job of the same name may still be there.
    found += (said for said in of_events if said.at >= began_at)
    return sorted(found, key=lambda said: said.at)


def tell_event(
    event: Object, name: str, job_uid: str, places: Mapping[str, tuple[int, int]]
) -> Iterator[Said]:
    """An event of the job or of one of its pods, also those that are gone; of others nothing.

    ``places`` are those of the pods that are there, by their uid.
    """
    about, reason = section(event, "involvedObject"), event.get("reason", "")
    uid = about.get("uid", "")
    pattern = rf"{re.escape(name)}-(?:node-0-|worker-|master-)?\d+(-[a-z0-9]+)?"
    is_gone_pod = about.get("kind") == "Pod" and re.fullmatch(pattern, about.get("name", ""))
    if uid not in (job_uid, *places) and not is_gone_pod:
        return
    if reason in TOLD_BY_THE_JOB or (uid in places and reason in TOLD_BY_PODS):
        return
    times = f" ({event['count']} times)" if (event.get("count") or 1) > 1 else ""
    who = "" if uid in places or uid == job_uid else f"{about.get('name')}: "
    text = f"{who}{reason}: {message_of(event)}{times}"
    yield Said(at=event_time(event), place=places.get(uid), text=text)


def tell_node(view: PodView, number: int) -> NodeReport:
    """What a report says of a node whose agent left no outcome: how its container ended."""
    code, trouble = view.exit_code, view.trouble
    phases: dict[str, float] = {}
    if view.started:
        started_at = seconds_of(view.started)
        phases["starting"] = round(max(0.0, started_at - seconds_of(view.created)), 3)
        if view.ending and view.ending.finished:
            phases["running"] = round(seconds_of(view.ending.finished) - started_at, 3)
    assert view.node_index is not None, "asked for nodes alone"
    return NodeReport(
        node_index=view.node_index,
        incarnation=number,
        reason=None if code is None else reason_of_exit_code(code).value,
        exit_code=code,
        detail=f"{trouble.value}: {view.message}" if trouble else "",
        phases_s=phases,
    )


def _folder_on_claim(plan: LaunchPlan, claim: Path | None) -> Path | None:
    """The run's folder on its claim, where this machine sees it."""
    if PodSettings.of(plan).run is None:
        return None
    inside = Path(dict(plan.nodes[0].env).get(protocol.RUN_DIR, protocol.CONTAINER_RUN_DIR))
    folder = inside if claim is None else claim / inside.relative_to(protocol.CONTAINER_RUN_DIR)
    return folder if folder.is_dir() else None


def _link_all(source: Path, target: Path) -> None:
    """Copies the ledger and what nodes say, and links to their logs; what is here already stays."""
    for path in source.rglob("*"):
        to = target / path.relative_to(source)
        if path.is_dir() or to.exists():
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            if path.suffix in (".json", ".jsonl"):
                shutil.copyfile(path, to)
            else:
                to.symlink_to(path.absolute())
