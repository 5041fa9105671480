"""The official client, logged in as kubectl would be: kubeconfigs, the login command, and a login
that has expired."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from launcher.contract.errors import TargetError
from launcher.contract.waits import RETRY_S

MALFORMED = (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError)
"""What the client raises for a file that is no kubeconfig."""
UNAUTHORIZED, BUSY = 401, 429
BUSY_TRIES, LONGEST_BUSY_S = 10, 30.0
"""How often a server with too many requests is asked, as by kubectl, and the longest pause."""
MOST_CONNECTIONS = 1024
"""Each followed log takes one; above this limit the client warns on the terminal."""
RETRIES = 3
"""How often a connection that fails is tried again."""
RENEW_S = 5.0
"""The least time between two logins: each may start a login command."""


def official_client() -> tuple[Any, Any]:
    """The official client and its reader of kubeconfigs, imported at the first call."""
    from kubernetes import client, config

    return client, config


def config_files() -> str:
    """The kubeconfigs as of now: the official client keeps the value from its import."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def has_config(files: str) -> bool:
    """Whether one of the files that ``config_files`` may name is there."""
    named = (Path(name).expanduser() for name in files.split(os.pathsep) if name)
    return any(file.is_file() for file in named)


def is_in_pod() -> bool:
    """Whether this process runs in a pod."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def open_client(files: str | None, context: str | None, *, kubectl: str, fix: str) -> Any:
    """A client for a context of the kubeconfigs (None: their current one).

    If ``files`` is None, the client uses the pod's account. Connects to nothing, but runs the
    context's login command, if any. Raises ``TargetError`` with a hint: ``kubectl`` is what to type
    for that context, ``fix`` says what helps if the files do not have it.
    """
    client, config = official_client()
    import urllib3

    settings = client.Configuration()
    # The error that is raised in the end says it; urllib3 would log each try on the terminal.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    errors: list[str] = []
    try:
        with _logged_errors(errors):
            if files is None:
                config.load_incluster_config(client_configuration=settings)
            else:
                # What the client refreshes must not be written into a person's kubeconfig.
                config.load_kube_config(
                    config_file=files,
                    context=context,
                    client_configuration=settings,
                    persist_config=False,
                )
    except OSError as error:
        raise TargetError(f"{files} cannot be read: {error.strerror}", fix) from error
    except (config.ConfigException, *MALFORMED) as error:
        known = isinstance(error, config.ConfigException)
        why = str(error).splitlines()[0] if known else "it is no kubeconfig"
        why = why if files is None or has_config(files) else "no such file"
        raise TargetError(f"no cluster: {f'{files}: ' if files else ''}{why}", fix) from error
    if errors:
        what = f"the login command of context {context or 'in use'} failed: {errors[0]}"
        raise TargetError(what, f"{kubectl} get pods runs the same command, and tells more")
    settings.connection_pool_maxsize = MOST_CONNECTIONS
    # A request that was sent is not repeated: its answer may only be late.
    settings.retries = urllib3.Retry(RETRIES, read=False)
    if not settings.verify_ssl:
        # The launcher says it once; urllib3 would at every request.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return client.ApiClient(settings)


class Login:
    """A client whose login is renewed: a token may expire, and a person may log in again."""

    def __init__(self, open_anew: Callable[[], Any]) -> None:
        """``open_anew`` reads the configuration as it is then, as ``open_client`` does."""
        self._open, self._lock = open_anew, threading.Lock()
        self._client, self._renewed_at = open_anew(), float("-inf")

    @property
    def configuration(self) -> Any:
        """The client's settings."""
        return self._client.configuration

    def call_api(self, *words: Any, ends_at: float, **named: Any) -> Any:
        """As the client's; a server with too many requests is asked again, until ``ends_at``.

        It has done nothing by then, whatever it was asked for. ``ends_at`` is a monotonic time.
        """
        client, _ = official_client()
        tries = 0
        while True:
            try:
                return self._call_api(*words, **named)
            except client.ApiException as error:
                pause_s, tries = _pause_s(error), tries + 1
                is_late = time.monotonic() + pause_s >= ends_at
                if error.status != BUSY or tries == BUSY_TRIES or is_late:
                    raise
            time.sleep(pause_s)

    def _call_api(self, *words: Any, **named: Any) -> Any:
        """A request that is not authorized is sent once more, with a new login."""
        client, _ = official_client()
        used = self._client
        try:
            return used.call_api(*words, **named)
        except client.ApiException as error:
            if error.status != UNAUTHORIZED or (renewed := self._renew(used)) is used:
                raise
        return renewed.call_api(*words, **named)

    def _renew(self, used: Any) -> Any:
        with self._lock:
            now = time.monotonic()
            if self._client is used and now - self._renewed_at > RENEW_S:
                self._renewed_at, self._client = now, self._open()
            return self._client


def _pause_s(error: Any) -> float:
    """How long the server wants to be left alone, in seconds."""
    retry_after = (error.headers or {}).get("Retry-After", "")
    return min(float(retry_after), LONGEST_BUSY_S) if retry_after.isdecimal() else RETRY_S


@contextlib.contextmanager
def _logged_errors(errors: list[str]) -> Iterator[None]:
    """Collects the client's errors: it only logs that a login command failed, and continues."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())

    handler = Collector(level=logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
