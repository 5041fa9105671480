"""Health of the node over HTTP: ``/healthz`` for probes, ``/metrics`` for Prometheus; when a node
is healthy, and which metrics there are.

Both answer with the same text. A probe looks at the status: it is 503 while the node is not
healthy. Answers from what the agent knows already, so that a hanging worker cannot hang a probe.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from launcher.agent.engine.monitoring.watchdog import SilenceBook
from launcher.agent.engine.node_state import Node
from launcher.contract.clock import Clock
from launcher.contract.reports.vitals import TrainingVitals, Vitals, read_vitals

REQUEST_LIMIT_S = 5.0
"""How long a client may take to send its request."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """The node at an instant."""

    healthy: bool
    phase: str
    attempt: int
    world_size: int
    step: int
    heartbeat_age_s: float | None
    restarts: Mapping[str, int]
    phase_s: Mapping[str, float]
    vitals: Vitals | None = None


def read_health(node: Node, book: SilenceBook | None, clock: Clock) -> Health:
    """Healthy: the workers make steps, or have been silent for less than ``hang_max_s``.

    The watchdog ends earlier hangs: a probe cannot tell them from workers that compute.
    """
    now = clock.monotonic()
    beats = node.attempts.beats()
    running = {worker.rank for worker in node.attempts.running()}
    stepping = [beat for rank, beat in beats.items() if beat.steps and rank in running]
    ages = [now - beat.at for beat in stepping]
    deadlines = [beat.at + book.most_s - now for beat in stepping if book]
    return Health(
        healthy=node.phase != "run" or not deadlines or max(deadlines) >= 0,
        phase=node.phase,
        attempt=node.attempts.number,
        world_size=len(node.attempts.workers) * max(1, node.num_nodes),
        step=max((beat.steps for beat in stepping), default=0),
        heartbeat_age_s=round(max(ages), 3) if ages else None,
        restarts=dict(node.judge.restarts),
        phase_s={name: round(spent, 3) for name, spent in node.seconds_by_phase(now).items()},
        vitals=read_vitals(node.attempts.node_dir),
    )


def render_metrics(health: Health) -> str:
    """Prometheus' text format, version 0.0.4. Pure."""
    lines: list[str] = []
    for name, help_text, values in read_metrics(health):
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"] if values else []
        lines += [f"{name}{labels} {value}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"


def read_metrics(health: Health) -> list[tuple[str, str, dict[str, float]]]:
    """Each metric, what it is, and its values by labels: none if they are unknown. Pure."""
    vitals = health.vitals
    training, gpus = (vitals.training, vitals.gpus) if vitals else (TrainingVitals(), ())
    spent = {name: s for name, s in vitals.seconds.items() if name != "idle"} if vitals else {}

    def single(value: float | None) -> dict[str, float]:
        return {} if value is None else {"": value}

    def by(label: str, values_by_name: Mapping[str, float]) -> dict[str, float]:
        return {f'{{{label}="{name}"}}': value for name, value in values_by_name.items()}

    def of_gpus(key: str) -> dict[str, float]:
        return by("gpu", {gpu.name: getattr(gpu, key) for gpu in gpus})

    age = single(health.heartbeat_age_s)
    cpu_share, used, limit = None, None, None
    if vitals:
        cpu_share, used, limit = vitals.cpu_share, vitals.memory_bytes, vitals.memory_limit_bytes
    return [
        ("launcher_healthy", "1 while the node makes progress.", {"": int(health.healthy)}),
        ("launcher_world_size", "Workers of the job.", {"": health.world_size}),
        ("launcher_attempt", "Attempt of this node's workers.", {"": health.attempt}),
        ("launcher_step", "Optimizer steps of this attempt.", {"": health.step}),
        ("launcher_heartbeat_age_seconds", "Since the oldest heartbeat.", age),
        ("launcher_restarts_total", "Restarts of workers by cause.", by("cause", health.restarts)),
        ("launcher_phase_seconds_total", "By phase of the agent.", by("phase", health.phase_s)),
        ("launcher_training_seconds_total", "By class; max over nodes.", by("class", spent)),
        ("launcher_training_step", "Steps over all starts.", single(training.step)),
        ("launcher_training_loss", "The last loss in the ledger.", single(training.loss)),
        ("launcher_training_samples_per_second", "Of the job.", single(training.samples_per_s)),
        ("launcher_checkpoint_timestamp_seconds", "The last save.", single(training.saved_at)),
        ("launcher_node_cpu_ratio", "Busy share of the machine.", single(cpu_share)),
        ("launcher_node_memory_bytes", "In use.", single(used)),
        ("launcher_node_memory_limit_bytes", "At most.", single(limit)),
        ("launcher_gpu_utilization_ratio", "Busy share of the GPU.", of_gpus("share")),
        ("launcher_gpu_memory_bytes", "In use.", of_gpus("memory_bytes")),
        ("launcher_gpu_memory_limit_bytes", "At most.", of_gpus("memory_limit_bytes")),
        ("launcher_gpu_temperature_celsius", "Of the chip.", of_gpus("temperature_c")),
    ]


def start_health_server(host: str, port: int, health_now: Callable[[], Health]) -> int:
    """Serves from daemon threads; returns the port. Raises OSError if the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_LIMIT_S

        def do_GET(self) -> None:
            if self.path not in ("/healthz", "/metrics"):
                self.send_error(404, "try /healthz or /metrics")
                return
            health = health_now()
            body = render_metrics(health).encode()
            self.send_response(503 if self.path == "/healthz" and not health.healthy else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing: probes come every few seconds."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    server = Server((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return int(server.server_address[1])
