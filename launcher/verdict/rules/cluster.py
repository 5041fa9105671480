"""Nodes, containers, Kubernetes, Docker, Slurm, MPI, ssh: what engines and schedulers say."""

from launcher.verdict.rules.rule import LIKELY, table

RULES = table(
    r"""
image-pull root
  image \S+ (?:is not on this machine|could not be sent there)|No such image|ErrImage\w+
  ImagePullBackOff|InvalidImageName|pull access denied
  failed to pull (?:and unpack )?image(?!.*no space left)|invalid reference format
  no basic auth credentials|requested access to the resource is denied|toomanyrequests
  pull rate limit
  FATAL: +(?:Unable to (?:handle|build from)|could not open image|while making image)
  pyxis: .*(?:import docker image|image.*(?:not found|denied)|error code: 4\d\d)
  server gave HTTP response to HTTPS client|Unable to find image '.*' locally$|unauthorized: auth
  ImageInspectError|name unknown:
container-start root
  (?:Create|Run)Container\w*Error|ContainerCannotRun|StartError|FailedMount|OCI runtime
  Unable to attach or mount volumes|Multi-Attach|unknown or invalid runtime name
  could not select device driver|enroot-\w+: failed|FailedCreatePodSandBox|bind source
  container name .*in use|execve\(\): \S+: No such file or directory|couldn't chdir|error mounting
  pyxis: container start failed|couldn't find key \S+ in|references non-existent
  cannot start container|Prolog (?:error|fail)|FailedPostStartHook|FailedAttach|spank plugin
wrong-architecture root
  exec format error|no matching manifest for|does not match the (?:detected host|spec)
no-room root
  \d/\d+ nodes are available|insufficient (?:cpu|memory|nvidia|unused)|exceeded quota
  UnexpectedAdmission|\bOutOf\w+pu\b|Requested node configuration is not available
  Requested nodes are busy|BadConstraints|Invalid generic resource|Requested time limit is invalid
  ReqNodeNotAvail|more processors requested than permitted
  (?:pending|\bPD\b|reason=|in the queue).*\b(?:Resources|Priority|QOS\w+|Assoc\w+|Max\w+Per\w+)\b
  not enough .*(?:slots|resources)|Memory required by task is not available
  node count specification invalid|tasks in gang unschedulable|\bUnschedulable\b|partition not av
  NotTriggerS
no-room sign
  submitted, and no node has started
not-allowed root
  is forbidden: (?!.*exceeded quota)|admission webhook \S+ denied|Invalid account
  Job violates account|Invalid qos|User's group not permitted|Access denied
  docker(?: daemon| engine|\.sock).*permission denied|permission denied.*Docker daemon
  Requested reservation is invalid|Access/permission denied|You must be logged in to|you may not 
not-allowed sure
  Permission denied \((?:publickey|password|gssapi|keyboard)|Host key verification failed
  does not accept any key of yours|Too many authentication failures|authentication failed
  could not read Username|gated ?repo|\bAccessDenied\b|Unable to locate credentials
  api_key not conf|Unauthorized\b|(?:Invalid|Expired) ?token|Protocol authentication
  SignatureDoesNotMatch|Repository not found|InvalidAccessKeyId|HTTP Error 40[13]
target-unreachable root
  Is the docker daemon running|Unable to connect to the server: |slurm_load_\w+ err
  The connection to the server \S+ was refused|ssh: connect to host \S+ port \d+: 
  kex_exchange_identification|(?:docker|kubectl|srun|sbatch|ssh): (?:command )?not found
  machine has no Slurm client|^error: .* (?:does not answer|gave no answer)|no matches for kind
  slurm_receive_msgs|ssh_exchange_identification|Connection (?:reset|closed) by \S+ port 22$
  unable to reliably start one or more daemons|daemon has unexpectedly failed after launch
  launch failed: (?:Socket|Unable)|Zero Bytes were transmitted|munge\.socket
target-unreachable likely
  Application launch fail
time-limit root
  DUE TO TIME LIMIT|DeadlineExceeded|active .*longer than .*deadline|TERM_RUNLIMIT|\bState=TIMEOUT\b
  reached (?:its )?time limit|\bTIMEOUT +\d+:\d+|walltime .*exceeded|: the (?:time limit|deadline)$
  its time limit (?:is|was) over|TIMEOUT .*ExitCode
preempted root
  evicting pod |scheduled for (?:retirement|maintenance)|due to preemption
  preempted (?:by|in order|to )|\bPreempting\b|instance-action
  DisruptionTarget(?!.*(?:TaintManager|PodGC))|spot (?:instance )?interruption
  imminent node shutdown|node/\S+ (?:cordoned|drained|evicted)|compute\.instances\.preempted
  \b(?:instance|node|vm)\b.{0,20} (?:is|was|been|being) preempted\b|PreemptionByScheduler|EvictionByEvictionAPI|TerminationByKubelet
  PREEMPTED +\d+:\d|reclaimed by
node-lost root
  taint node\.kubernetes\.io/(?:unreachable|not-ready|out-of-service)|NodeNotReady|NodeLost
  DUE TO NODE FAIL|\bNODE_FAIL|has been rebooted|\bnode (?P<node>\d+) is lost\b
  nodes? \S+ (?:are |is )?(?:not responding|went down|failure|still not ready)
  Kubelet stopped posting node status|node failure on|Kernel panic|soft lockup
  node\(s\) (?:were|had) unreachable|DeletionByPodGC|hard LOCKUP
node-lost likely
  RendezvousClosedError|lost communication with a remote daemon|Timeout, server \S+ not responding
  Connection to \S+ closed by remote host|\[Hardware Error\].*(?:fatal|uncorrected)
  machine check.*(?:fatal|uncorrected)|DeletionByTaintManager|EDAC .* UE\b|client_loop:
preempted likely
  \bEvicted\b(?!.*low on resource)|TaintManagerEviction|JOB REQUEUE
stopped-by-user likely
  CANCELLED (?:AT|by) (?!.*DUE TO)|scancel:|TERM_OWNER
clock-jump root
  (?:expired|rewound|invalid job) credential|credential expired|clock skew too great
  its clock is \d+ s (?:ahead|behind)
""",
    most=LIKELY,
)
