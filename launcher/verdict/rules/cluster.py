"""What engines and schedulers say (Kubernetes, Docker, Slurm, MPI, ssh): images, no room, refused
access, time limits, preemption, lost nodes.
"""

from launcher.verdict.rules.rule import LIKELY, table

RULES = table(
    r"""
image-pull root
  image \S+ (?:is not on this machine|could not be sent there)|Unable to find image '.*' locally$
  manifest (?:for \S+ not found|unknown)|https://\S+/v2/\S*: .*(?:timeout|x509|refused)
  No such image|FATAL: +(?:Unable to (?:handle|build from)|could not open image|while making image)
  ErrImage\w+|name unknown:|pull rate limit
  toomanyrequests|ImagePullBackOff|InvalidImageName|ImageInspectError|unauthorized: auth
  pull access denied|pyxis: .*(?:import docker image|image.*(?:not found|denied)|error code: 4\d\d)
  failed to pull (?:and unpack )?image(?!.*no space left)|server gave HTTP response to HTTPS client
  invalid reference format|no basic auth credentials|requested access to the resource is denied
container-start root
  (?:Create|Run)Container\w*Error|unknown or invalid runtime name|could not select device driver
  ContainerCannotRun|container name .*in use|pyxis: container start failed|couldn't find key \S+ in
  StartError|FailedMount|OCI runtime|bind source
  Unable to attach or mount volumes|execve\(\): \S+: No such file or directory|FailedPostStartHook
  Multi-Attach|enroot-\w+: failed|couldn't chdir|error mounting|FailedAttach|spank plugin
  executable file not found in \$PATH|MountVolume\.\w+ failed|response from daemon: network \S+ not
  FailedCreatePodSandBox|references non-existent|cannot start container|Prolog (?:error|fail)
wrong-architecture root
  exec format error|no matching manifest for|does not match the (?:detected host|spec)
container-start root
  persistentvolumeclaim .*not found => make the claim, or correct its name: kubectl get pvc
no-room root
  didn't match Pod's node (?:affinity|sel) => correct nodeSelector: kubectl get nodes --show-labels
  \d/\d+ nodes are available|Requested nodes are busy|UnexpectedAdmission|Invalid generic resource
  \bUnschedulable\b|exceeded quota|\bOutOf\w+pu\b|partition not av|BadConstraints|NotTriggerS
  insufficient (?:cpu|memory|nvidia|unused)|Requested node configuration is not available
  Requested time limit is invalid|not enough .*(?:slots|resources)|node count specification invalid
  didn't trigger scale-up|Node didn't have enough resource
  ReqNodeNotAvail|more processors requested than permitted|Memory required by task is not available
  (?:pending|\bPD\b|reason=|in the queue).*\b(?:Resources|Priority|QOS\w+|Assoc\w+|Max\w+Per\w+)\b
  (?:\bPD\b|in the queue).*Partition\w+Limit => fewer nodes or less time: scontrol show partition
  \bJobHeld\w+|\brequeued (?:in )?held\b => scontrol release JOB; scontrol show job JOB tells more
  (?:pending|\bPD\b|in the queue).*(?:Partition(?:Down|Inactive|Config)|NodeDown|DependencyNev)
no-room sign
  submitted, and no node has started
not-allowed root
  is forbidden: (?!.*exceeded quota)|docker(?: daemon| engine|\.sock).*permission denied
  admission webhook \S+ denied|permission denied.*Docker daemon|Requested reservation is invalid
  you may not |Invalid account|Invalid qos|Access denied
  Job violates account|User's group not permitted|Access/permission denied|You must be logged in to
not-allowed sure
  Permission denied \((?:publickey|password|gssapi|keyboard)|does not accept any key of yours
  Host key verification failed|Too many authentication failures|Unable to locate credentials
  DefaultCredentialsError|An error occurred \(403\)|violates PodSecurity
  authentication failed|could not read Username|(?:Invalid|Expired) ?token|Protocol authentication
  gated ?repo|Unauthorized\b|api_key not conf
  \bAccessDenied\b|SignatureDoesNotMatch|Repository not found|InvalidAccessKeyId|HTTP Error 40[13]
target-unreachable root
  Is the docker daemon running|kex_exchange_identification|launch failed: (?:Socket|Unable)
  Unable to connect to the server: |no matches for kind|daemon has unexpectedly failed after launch
  Connection (?:reset|closed) by \S+ port 22$|The connection to the server \S+ was refused
  unable to reliably start one or more daemons|^error: .* (?:does not answer|gave no answer)
  slurm_load_\w+ err|slurm_receive_msgs|contact slurm controller
  ssh: connect to host \S+ port \d+: |(?:docker|kubectl|srun|sbatch|ssh): (?:command )?not found
  machine has no Slurm client|ssh_exchange_identification|Zero Bytes were transmitted|munge\.socket
target-unreachable likely
  Application launch fail
time-limit root
  starts in a row left nothing new
  DUE TO TIME LIMIT|DeadlineExceeded|TERM_RUNLIMIT|\bState=TIMEOUT\b
  active .*longer than .*deadline|: the (?:time limit|deadline)$|its time limit (?:is|was) over
  reached (?:its )?time limit|\bTIMEOUT +\d+:\d+|walltime .*exceeded|TIMEOUT .*ExitCode
preempted root
  evicting pod |due to preemption|\bPreempting\b|instance-action|PREEMPTED +\d+:\d|reclaimed by
  scheduled for (?:retirement|maintenance)|DisruptionTarget(?!.*(?:TaintManager|PodGC))
  preempted (?:by|in order|to )|node/\S+ (?:cordoned|drained|evicted)|compute\.instances\.preempted
  spot (?:instance )?interruption|\b(?:instance|node|vm)\b.{0,20} (?:is|was|been|being) preempted\b
  imminent node shutdown|PreemptionByScheduler|EvictionByEvictionAPI|TerminationByKubelet
node-lost root
  \bnode (?P<node>\d+) is lost\b|^missing: \S+ does not answer$
  taint node\.kubernetes\.io/(?:unreachable|not-ready|out-of-service)|NodeNotReady|DUE TO NODE FAIL
  NodeStatusUnknown|self-detected stall on CPU
  NodeLost|Kubelet stopped posting node status|node failure on|node\(s\) (?:were|had) unreachable
  \bNODE_FAIL|Kernel panic|soft lockup|DeletionByPodGC|hard LOCKUP
  has been rebooted|nodes? \S+ (?:are |is )?(?:not responding|went down|failure|still not ready)
hold-ended root
  \bthe hold \S+ has ended \(
node-lost likely
  RendezvousClosedError|Timeout, server \S+ not responding|DeletionByTaintManager
  lost communication with a remote daemon|\[Hardware Error\].*(?:fatal|uncorrected)|EDAC .* UE\b
  Connection to \S+ closed by remote host|machine check.*(?:fatal|uncorrected)|client_loop:
preempted likely
  \bEvicted\b(?!.*low on resource)|TaintManagerEviction|DUE TO JOB REQUEUE
stopped-by-user likely
  CANCELLED (?:AT|by) (?!.*DUE TO)|scancel:|TERM_OWNER
clock-jump root
  (?:expired|rewound|invalid job) credential|credential expired|its clock is \d+ s (?:ahead|behind)
  clock skew too great
""",
    most=LIKELY,
)
