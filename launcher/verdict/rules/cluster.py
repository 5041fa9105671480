"""Nodes, containers, Kubernetes, Docker, Slurm, MPI, ssh: what engines and schedulers say."""

from launcher.verdict.rules.rule import LIKELY, table

RULES = table(
    r"""
image-pull root
  image \S+ (?:is not on this machine|could not be sent there)|No such image|ErrImage\w+
  ImagePullBackOff|InvalidImageName|ImageInspectError|Back-off pulling image|pull access denied
  manifest (?:for \S+ not found|unknown)|repository does not exist
  failed to pull (?:and unpack )?image(?!.*no space left)|failed to resolve reference
  Unable to find image '.*' locally$|invalid reference format|name unknown:
  no basic auth credentials|unauthorized: auth|requested access to the resource is denied
  toomanyrequests|pull rate limit|server gave HTTP response to HTTPS client
  FATAL: +(?:Unable to (?:handle|build from)|could not open image|while making image)
  pyxis: .*(?:import docker image|image.*(?:not found|denied)|error code: 4\d\d)
container-start root
  RunContainerError|CreateContainer(?:Config)?Error|StartError|FailedMount|FailedAttach|OCI runtime
  failed to create (?:shim|containerd) task|runc create failed
  exec(?:: \"| /)\S+: (?:executable file not found|no such file or directory)
  MountVolume\.\w+ failed|Unable to attach or mount volumes|configmap \S+ not found
  secret \"?\S+\"? not found|couldn't find key \S+ in|references non-existent|Multi-Attach
  unknown or invalid runtime name|unknown runtime|invalid mount config|failed to mount
  could not select device driver|nvidia-container-cli: (?!.*(?:satisfied|driver [en]))
  couldn't start container|enroot-\w+: failed|spank plugin|Plugin initialization fail
  FailedCreatePodSandBox|FailedPostStartHook|pyxis: container start failed|bind source
  execve\(\): \S+: No such file or directory|couldn't chdir|Prolog (?:error|fail)
  persistentvolumeclaim \"\S+\" not found|error mounting|cannot start container
wrong-architecture root
  exec format error|does not match the (?:detected host|spec)|no matching manifest for
no-room root
  FailedScheduling|\d/\d+ nodes are available|insufficient (?:cpu|memory|nvidia|unused)
  \bUnschedulable\b|exceeded quota|cannot be placed: |UnexpectedAdmission|\bOutOf\w+pu\b
  Requested node configuration is not available|Requested nodes are busy|BadConstraints
  invalid (?:partition|feature)|Invalid generic resource|Requested time limit is invalid
  node count specification invalid|ReqNodeNotAvail
  Partition(?:NodeLimit|TimeLimit|Config|Down|Inactive)\b
  more processors requested than permitted|Unable to allocate resources: |partition not av
  (?:pending|\bPD\b|reason=|in the queue).*\b(?:Resources|Priority|QOS\w+|Assoc\w+|Max\w+Per\w+)\b
  couldn't assign flavors|untolerated taint|not enough .*(?:slots|resources)|NotTriggerS
  tasks in gang unschedulable|Memory required by task is not available
no-room likely
  has \d+ (?:GPUs|slots)\b.* wants \d+|of its \d+ (?:GPUs|slots) are held|: held by
  queued and waiting for resources
no-room sign
  of \d+ hosts can be used|submitted, and no node has started|\d+/\d+ +Pending\b
not-allowed root
  is forbidden: (?!.*exceeded quota)|cannot (?:create|get|list|patch|delete) resource
  admission webhook \S+ denied|Invalid account|Job violates account|Invalid qos|you may not 
  User's group not permitted|Access/permission denied|Access denied
  docker(?: daemon| engine|\.sock).*permission denied|permission denied.*Docker daemon
  You must be logged in to|Requested reservation is invalid|violates PodSecurity
not-allowed sure
  Permission denied \((?:publickey|password|gssapi|keyboard)|Host key verification failed
  its host key is|does not accept any key of yours|Too many authentication failures
  authentication failed|could not read Username|GatedRepoError|\bAccessDenied\b
  ^(?!.*proxy).*\b40[13]\b.{0,60}(?:forbidden|unauthorized)|HTTP Error 40[13]
  Unable to locate credentials|InvalidAccessKeyId|SignatureDoesNotMatch|api_key not conf
  (?:Invalid|Expired) ?token|Unauthorized\b|Protocol authentication|Repository not found
target-unreachable root
  Cannot connect to the Docker daemon|Is the docker daemon running|no Docker engine ans
  Unable to contact slurm controller|Unable to connect to the server: |slurm_load_\w+ err
  The connection to the server \S+ was refused|Zero Bytes were transmitted|munge\.socket
  ssh: connect to host \S+ port \d+: |kex_exchange_identification|nothing listens at its
  (?:docker|kubectl|srun|sbatch|ssh): (?:command )?not found|machine has no Slurm client
  ^error: .* (?:does not answer|gave no answer)|STILL RUNNING: |^error: no cluster:
  no matches for kind|its sshd closed the connection|doesn't have a resource type
  context \"?\S+\"? does not|slurm_receive_msgs|launch failed: (?:Socket|Unable)
  Application launch fail|unable to reliably start one or more daemons
  daemon has unexpectedly failed after launch
time-limit root
  DUE TO TIME LIMIT|DeadlineExceeded|active .*longer than .*deadline|TERM_RUNLIMIT
  TIMEOUT .*ExitCode|\bState=TIMEOUT\b|reached (?:its )?time limit|\bTIMEOUT +\d+:\d+
  its time limit (?:is|was) over|walltime .*exceeded|: the (?:time limit|deadline)$
preempted root
  evicting pod |node/\S+ (?:cordoned|drained|evicted)|scheduled for (?:retirement|maintenance)
  due to preemption|preempted (?:by|in order|to )|\bPreempting\b|instance-action
  DisruptionTarget(?!.*(?:TaintManager|PodGC))|PreemptionByScheduler|TerminationByKubelet
  spot (?:instance )?interruption|compute\.instances\.preempted|EvictionByEvictionAPI
  imminent node shutdown|reclaimed by|instance was preempted|PREEMPTED +\d+:\d
node-lost root
  taint node\.kubernetes\.io/(?:unreachable|not-ready|out-of-service)|DeletionByPodGC|NodeNotReady
  NodeLost|node is not ready|DUE TO NODE FAIL|\bNODE_FAIL|has been rebooted
  \bnode (?P<node>\d+) is lost\b
  nodes? \S+ (?:are |is )?(?:not responding|went down|failure|still not ready)
  Kubelet stopped posting node status|node\(s\) (?:were|had) unreachable|node failure on
  Kernel panic|soft lockup|hard LOCKUP
node-lost likely
  machine check.*(?:fatal|uncorrected)|\[Hardware Error\].*(?:fatal|uncorrected)|EDAC .* UE\b
  RendezvousClosedError|DeletionByTaintManager|lost communication with a remote daemon
  no sign of life for|Timeout, server \S+ not responding|Connection to \S+ closed by remote host
  client_loop:
preempted likely
  \bEvicted\b(?!.*low on resource)|TaintManagerEviction|JOB REQUEUE|ACPI.*power button
stopped-by-user likely
  CANCELLED (?:AT|by) (?!.*DUE TO)|scancel:
clock-jump root
  (?:expired|rewound|invalid job) credential|credential expired|clock skew too great
  its clock is \d+ s (?:ahead|behind)
""",
    most=LIKELY,
)
