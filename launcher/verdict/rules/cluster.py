"""Nodes, containers, Kubernetes, Docker, Slurm, ssh: what engines and schedulers say."""

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, ROOT, Meanings

MEANINGS: Meanings = {
    (FailureCause.IMAGE_PULL, ROOT): (
        r"image \S+ (?:is not on this machine|could not be sent there)",
        r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull",
        r"pull access denied|manifest (?:for \S+ not found|unknown)|repository does not exist",
        r"[Ff]ailed to pull (?:and unpack )?image|Unable to find image '.*' locally$",
        r"no basic auth credentials|unauthorized: authentication required|toomanyrequests",
        r"FATAL: +Unable to (?:handle|build from) .*(?:docker|oras|library)://",
        r"pyxis: (?:failed to import docker image|.*image.*(?:not found|denied))",
    ),
    (FailureCause.CONTAINER_START, ROOT): (
        r"RunContainerError|CreateContainer(?:Config)?Error|StartError|FailedMount",
        r"OCI runtime (?:create|exec) failed|failed to create (?:shim|containerd) task",
        r"exec(?:: \"| /)\S+: (?:executable file not found|no such file or directory)",
        r"MountVolume\.\w+ failed|Unable to attach or mount volumes|configmap \S+ not found",
        r"secret \"\S+\" not found|unknown or invalid runtime name|invalid mount config",
        r"could not select device driver|nvidia-container-cli: (?!.*(?:unsatisfied|driver error))",
        r"FailedCreatePodSandBox|pyxis: container start failed",
        r"execve\(\): \S+: No such file or directory|slurmstepd: error: .*couldn't chdir",
    ),
    (FailureCause.WRONG_ARCHITECTURE, ROOT): (
        r"exec format error|[Ee]xec user process caused|does not match the (?:detected host|spec)",
    ),
    (FailureCause.NO_ROOM, ROOT): (
        r"FailedScheduling|0/\d+ nodes are available|[Ii]nsufficient (?:cpu|memory|nvidia)",
        r"\bUnschedulable\b|exceeded quota|Requested node configuration is not available",
        r"[Ii]nvalid (?:partition|qos|feature) (?:name )?spec",
        r"[Nn]ode count specification invalid|ReqNodeNotAvail|Partition(?:Node|Time)Limit",
        r"[Mm]ore processors requested than permitted|Unable to allocate resources: Requested",
        r"job (?:was )?pending .*\((?:Resources|Priority|QOS\w+|Assoc\w+)\)",
        r"couldn't assign flavors|untolerated taint|[Nn]ot enough .*(?:slots|resources)",
    ),
    (FailureCause.NO_ROOM, LIKELY): (r"of \d+ hosts can be used",),
    (FailureCause.NOT_ALLOWED, ROOT): (
        r"is forbidden: User|cannot (?:create|get|list|patch|delete) resource|violates PodSecurity",
        r"admission webhook \S+ denied|Invalid account or account/partition|Job violates account",
        r"User's group not permitted|Permission denied \((?:publickey|password)|Access denied",
        r"permission denied while trying to connect to the Docker daemon",
        r"error: You must be logged in to the server|authentication failed|Host key verification",
    ),
    (FailureCause.TARGET_UNREACHABLE, ROOT): (
        r"Cannot connect to the Docker daemon|Is the docker daemon running",
        r"Unable to contact slurm controller|Unable to connect to the server: ",
        r"The connection to the server \S+ was refused|slurm_load_jobs error|socket_open_control",
        r"ssh: connect to host \S+ port \d+: |kex_exchange_identification: ",
        r"(?:docker|kubectl|srun|sbatch|ssh): (?:command )?not found|^error: \S.* does not answer",
        r"no Docker engine answers|STILL RUNNING: |^error: no cluster: ",
    ),
    (FailureCause.TIME_LIMIT, ROOT): (
        r"DUE TO TIME LIMIT|DeadlineExceeded|active longer than \w+ (?:specified )?deadline",
        r"TIMEOUT .*ExitCode|\bState=TIMEOUT\b|[Jj]ob (?:has )?reached (?:its )?time limit",
        r"its time limit (?:is|was) over|walltime .*exceeded",
    ),
    (FailureCause.PREEMPTED, ROOT): (
        r"DUE TO PREEMPTION|[Pp]reempted (?:by|in order)|\bPreempting\b|DisruptionTarget",
        r"spot (?:interruption|instance)|TerminationByKubelet",
        r"due to preemption|instance-action|ACPI.*[Pp]ower [Bb]utton|PreemptionByScheduler",
        r"TaintManagerEviction|EvictionByEvictionAPI|reclaimed by",
    ),
    (FailureCause.HOST_OUT_OF_MEMORY, ROOT): (r"low on resource: memory|MemoryPressure",),
    (FailureCause.NODE_LOST, ROOT): (
        r"taint node\.kubernetes\.io/(?:unreachable|not-ready|out-of-service)",
        r"NodeNotReady|NodeLost|node is not ready|DUE TO NODE (?:FAILURE|FAIL)|NODE_FAIL",
        r"\bnode (?P<node>\d+) is lost\b",
        r"[Nn]ode \S+ (?:not responding|went down|failure)|DeletionByPodGC",
        r"Kubelet stopped posting node status|node\(s\) (?:were|had) unreachable",
        r"[Nn]ode failure on \S+|error: Node failure",
    ),
    (FailureCause.STOPPED_BY_USER, LIKELY): (r"CANCELLED (?:AT|by) (?!.*DUE TO)|scancel: ",),
    (FailureCause.PREEMPTED, LIKELY): (r"\bEvicted\b(?!.*(?:memory|storage))",),
    (FailureCause.CLOCK_JUMP, ROOT): (
        r"(?:[Ee]xpired|[Rr]ewound) credential|credential expired",
        r"its clock is \d+ s (?:ahead|behind)",
    ),
}
