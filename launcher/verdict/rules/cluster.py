"""Nodes, containers, Kubernetes, Docker, Slurm, MPI, ssh: what engines and schedulers say."""

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, ROOT, SIGN, SURE, Meanings

MEANINGS: Meanings = {
    (FailureCause.IMAGE_PULL, ROOT): (
        r"image \S+ (?:is not on this machine|could not be sent there)|No such image",
        r"ErrImage\w+|ImagePullBackOff|InvalidImageName|ImageInspectError|Back-off pulling image",
        r"pull access denied|manifest (?:for \S+ not found|unknown)|repository does not exist",
        r"failed to pull (?:and unpack )?image(?!.*no space left)|failed to resolve reference",
        r"Unable to find image '.*' locally$|invalid reference format|name unknown: ",
        r"no basic auth credentials|unauthorized: auth|requested access to the resource is denied",
        r"toomanyrequests|pull rate limit|server gave HTTP response to HTTPS client",
        r"FATAL: +(?:Unable to (?:handle|build from)|could not open image|while making image) ",
        r"pyxis: .*(?:import docker image|image.*(?:not found|denied)|error code: 4\d\d)",
    ),
    (FailureCause.CONTAINER_START, ROOT): (
        r"RunContainerError|CreateContainer(?:Config)?Error|StartError|FailedMount|FailedAttach",
        r"OCI runtime|failed to create (?:shim|containerd) task|runc create failed",
        r"exec(?:: \"| /)\S+: (?:executable file not found|no such file or directory)",
        r"MountVolume\.\w+ failed|Unable to attach or mount volumes|configmap \S+ not found",
        r"secret \"?\S+\"? not found|couldn't find key \S+ in|references non-existent|Multi-Attach",
        r"unknown or invalid runtime name|unknown runtime|invalid mount config|failed to mount",
        r"could not select device driver|nvidia-container-cli: (?!.*(?:satisfied|driver [en]))",
        r"couldn't start container|enroot-\w+: failed|spank plugin|Plugin initialization fail",
        r"FailedCreatePodSandBox|FailedPostStartHook|pyxis: container start failed|bind source",
        r"execve\(\): \S+: No such file or directory|couldn't chdir|Prolog (?:error|fail)",
        r"persistentvolumeclaim \"\S+\" not found|error mounting|cannot start container",
    ),
    (FailureCause.WRONG_ARCHITECTURE, ROOT): (
        r"exec format error|does not match the (?:detected host|spec)|no matching manifest for",
    ),
    (FailureCause.NO_ROOM, ROOT): (
        r"FailedScheduling|\d/\d+ nodes are available|insufficient (?:cpu|memory|nvidia|unused)",
        r"\bUnschedulable\b|exceeded quota|cannot be placed: |UnexpectedAdmission|\bOutOf\w+pu\b",
        r"Requested node configuration is not available|Requested nodes are busy|BadConstraints",
        r"invalid (?:partition|feature)|Invalid generic resource|Requested time limit is invalid",
        r"node count specification invalid|ReqNodeNotAvail|Partition(?:Node|Time)Limit",
        r"more processors requested than permitted|Unable to allocate resources: |partition not av",
        r"(?:pending|\bPD\b|reason=).*\b(?:Resources|Priority|QOS\w+|Assoc\w+|Max\w+Per\w+)\b",
        r"couldn't assign flavors|untolerated taint|not enough .*(?:slots|resources)|NotTriggerS",
        r"tasks in gang unschedulable|Memory required by task is not available",
    ),
    (FailureCause.NO_ROOM, LIKELY): (
        r"has \d+ (?:GPUs|slots)\b.* wants \d+|of its \d+ (?:GPUs|slots) are held|: held by ",
        r"queued and waiting for resources",
    ),
    (FailureCause.NO_ROOM, SIGN): (
        r"of \d+ hosts can be used|submitted, and no node has started|\d+/\d+ +Pending\b",
    ),
    (FailureCause.NOT_ALLOWED, ROOT): (
        r"is forbidden: (?!.*exceeded quota)|cannot (?:create|get|list|patch|delete) resource",
        r"admission webhook \S+ denied|Invalid account|Job violates account|Invalid qos",
        r"you may not |User's group not permitted|Access/permission denied|Access denied",
        r"docker(?: daemon| engine|\.sock).*permission denied|permission denied.*Docker daemon",
        r"You must be logged in to|Requested reservation is invalid|violates PodSecurity",
    ),
    (FailureCause.NOT_ALLOWED, SURE): (
        r"Permission denied \((?:publickey|password|gssapi|keyboard)|Host key verification failed",
        r"its host key is|does not accept any key of yours|Too many authentication failures",
        r"authentication failed|could not read Username|GatedRepoError|\bAccessDenied\b",
        r"^(?!.*proxy).*\b40[13]\b.{0,60}(?:forbidden|unauthorized)|HTTP Error 40[13]",
        r"Unable to locate credentials|InvalidAccessKeyId|SignatureDoesNotMatch|api_key not conf",
        r"(?:Invalid|Expired) ?token|Unauthorized\b|Protocol authentication|Repository not found",
    ),
    (FailureCause.TARGET_UNREACHABLE, ROOT): (
        r"Cannot connect to the Docker daemon|Is the docker daemon running|no Docker engine ans",
        r"Unable to contact slurm controller|Unable to connect to the server: |slurm_load_\w+ err",
        r"The connection to the server \S+ was refused|Zero Bytes were transmitted|munge\.socket",
        r"ssh: connect to host \S+ port \d+: |kex_exchange_identification|nothing listens at its",
        r"(?:docker|kubectl|srun|sbatch|ssh): (?:command )?not found|machine has no Slurm client",
        r"^error: .* (?:does not answer|gave no answer)|STILL RUNNING: |^error: no cluster: ",
        r"no matches for kind",
        r"its sshd closed the connection|doesn't have a resource type|context \"?\S+\"? does not",
        r"slurm_receive_msgs|launch failed: (?:Socket|Unable)|Application launch fail",
        r"unable to reliably start one or more daemons|daemon has unexpectedly failed after launch",
    ),
    (FailureCause.TIME_LIMIT, ROOT): (
        r"DUE TO TIME LIMIT|DeadlineExceeded|active .*longer than .*deadline|TERM_RUNLIMIT",
        r"TIMEOUT .*ExitCode|\bState=TIMEOUT\b|reached (?:its )?time limit|\bTIMEOUT +\d+:\d+",
        r"its time limit (?:is|was) over|walltime .*exceeded|: the (?:time limit|deadline)$",
    ),
    (FailureCause.PREEMPTED, ROOT): (
        r"due to preemption|preempted (?:by|in order|to )|\bPreempting\b|instance-action",
        r"DisruptionTarget(?!.*(?:TaintManager|PodGC))|PreemptionByScheduler|TerminationByKubelet",
        r"spot (?:instance )?interruption|compute\.instances\.preempted|EvictionByEvictionAPI",
        r"imminent node shutdown|reclaimed by|instance was preempted|PREEMPTED +\d+:\d",
    ),
    (FailureCause.NODE_LOST, ROOT): (
        r"taint node\.kubernetes\.io/(?:unreachable|not-ready|out-of-service)|DeletionByPodGC",
        r"NodeNotReady|NodeLost|node is not ready|DUE TO NODE FAIL|\bNODE_FAIL|has been rebooted",
        r"\bnode (?P<node>\d+) is lost\b",
        r"nodes? \S+ (?:are |is )?(?:not responding|went down|failure|still not ready)",
        r"Kubelet stopped posting node status|node\(s\) (?:were|had) unreachable|node failure on",
        r"Kernel panic|soft lockup|hard LOCKUP",
    ),
    (FailureCause.NODE_LOST, LIKELY): (
        r"RendezvousClosedError|DeletionByTaintManager|lost communication with a remote daemon",
        r"no sign of life for",
        r"Timeout, server \S+ not responding|Connection to \S+ closed by remote host|client_loop: ",
    ),
    (FailureCause.PREEMPTED, LIKELY): (
        r"\bEvicted\b(?!.*low on resource)|TaintManagerEviction|JOB REQUEUE|ACPI.*power button",
    ),
    (FailureCause.STOPPED_BY_USER, LIKELY): (r"CANCELLED (?:AT|by) (?!.*DUE TO)|scancel: ",),
    (FailureCause.CLOCK_JUMP, ROOT): (
        r"(?:expired|rewound|invalid job) credential|credential expired|clock skew too great",
        r"its clock is \d+ s (?:ahead|behind)",
    ),
}
