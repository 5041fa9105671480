"""The watch of pods: what comes, changes and goes, and what breaks it."""

from collections.abc import Iterator

import pytest

from launcher.contract import protocol
from launcher.contract.errors import TargetError
from launcher.targets.kubernetes.api.cluster import Cluster
from launcher.targets.kubernetes.pods.watch import PodWatch
from tests.launcher.fake_cluster import Fault, ended, pod
from tests.launcher.targets.kubernetes.conftest import labelled


@pytest.fixture
def watch(cluster: Cluster) -> Iterator[PodWatch]:
    made = PodWatch(cluster, f"{protocol.LABEL_RUN_ID}=digits-0a1b2c")
    yield made
    made.stop()


def names(watch: PodWatch) -> list[str]:
    return [view.name for view in watch.pods()]


def test_pods_come_change_and_go(server, watch):
    server.put("pods", pod("d-0", labelled(0)))
    server.put("pods", pod("other", {"app": "other"}))
    watch.start()
    server.until(lambda: names(watch) == ["d-0"])
    server.put("pods", pod("d-1", labelled(1)))
    server.until(lambda: names(watch) == ["d-0", "d-1"])
    server.put("pods", pod("d-1", labelled(1), phase="Failed", state=ended(3)))
    server.until(lambda: watch.pods()[1].exit_code == 3)
    server.remove("pods", "d-0")
    server.until(lambda: names(watch) == ["d-1"])
    assert len(server.asked("GET", "/pods")) == 2, "one list, one watch"


def test_a_watch_of_a_forgotten_version_is_answered_by_a_new_list(server, watch):
    server.put("pods", pod("d-0", labelled(0)))
    server.faults.append(Fault("GET", "watch=true", 410, "too old resource version"))
    watch.start()
    server.until(lambda: len([q for q in server.asked("GET", "/pods") if "watch" not in q]) == 2)
    server.until(lambda: watch.error is None and names(watch) == ["d-0"])


def test_a_watch_that_is_told_that_it_expired_lists_again(server, watch):
    server.put("pods", pod("d-0", labelled(0)))
    server.oldest_version = server.version + 1
    watch.start()
    server.until(lambda: len([q for q in server.asked("GET", "/pods") if "watch" not in q]) >= 2)
    server.oldest_version = 0
    server.put("pods", pod("d-1", labelled(1)))
    server.until(lambda: names(watch) == ["d-0", "d-1"])


def test_a_watch_that_is_cut_in_the_middle_goes_on_from_there(server, watch):
    server.put("pods", pod("d-0", labelled(0)))
    server.faults.append(Fault("GET", "watch=true", 0, after=15))
    watch.start()
    server.until(lambda: names(watch) == ["d-0"])
    server.put("pods", pod("d-1", labelled(1)))
    server.until(lambda: names(watch) == ["d-0", "d-1"])
    assert len([q for q in server.asked("GET", "/pods") if "watch" not in q]) == 1


def test_a_list_that_makes_no_sense_is_a_cluster_that_does_not_answer(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "list_objects", lambda *_: {"items": [], "metadata": {}})
    with pytest.raises(TargetError, match="the cluster's answer makes no sense"):
        PodWatch(cluster, "").refresh()


def test_a_server_that_fails_for_a_while_is_asked_again(server, watch):
    server.faults.append(Fault("GET", "/pods", 503, "overloaded"))
    watch.start()
    server.until(lambda: watch.error is not None)
    server.put("pods", pod("d-0", labelled(0)))
    server.until(lambda: names(watch) == ["d-0"] and watch.error is None)
