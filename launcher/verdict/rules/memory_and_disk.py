"""Main memory, GPU memory, shared memory, disks and limits of the machine."""

from launcher.verdict.rules.rule import table

RULES = table(r"""
gpu-busy sure
  CUDA-capable device\S* (?:is/)?are busy|cudaErrorDevicesUnavailable
  the dead workers' GPU memory did not become free|in use by another client
# Another process holds gigabytes, and this one less than one.
  \bProcess \d+ has [\d.]+ GiB(?!.*(?:allocated memory|this process has) [\d.]+ GiB)
cuda-out-of-memory sure
  \b(?:CUDA|HIP|XPU|MPS)\b.{0,25}out of memory|torch\.(?:cuda\.)?OutOfMemoryError
  CUDA(?:_ERROR_|Error)(?:OUT_OF_MEMORY|MemoryAllocation)|\w+_ALLOC_FAILED
  Failed to CUDA (?:calloc|malloc|host ?alloc)|NCCL WARN .*out of memory
cuda-out-of-memory likely
  CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED
host-out-of-memory root
  out of memory.*: Kill(?:ed)? process|cgroup out of memory|oom_reaper: reaped|oom-kill:constraint=
  invoked oom-killer|killed by the OOM killer|earlyoom: sending SIG|systemd-oomd.*Killed
  OOMKill(?:ed|ing)\b(?!\W+false)|System OOM encountered|detected \d+ oom.kill event
  slurmstepd: error: .*oom.kill|task \d+: Out Of Memory
  exceeded (?:step |job |virtual )*memory limit|\bOUT_OF_ME|TERM_MEMLIMIT
  exceeded its container memory limit|job killed: \w*mem\b.*exceeded|running low on memory
  low on resource: memory|had condition: \[MemoryPressure|MemoryPressure +True
  NodeHasInsufficientMemory|due to memory pressure
shm-too-small sure
  insufficient shared memory|out of shared memory|is not enough space for \S*shm
  ^(?!.*too many open).*unable to (?:\w+ shared mem|.*</?torch_\S*>)
  no space left on device.*(?:/dev/shm|torch_\d|nccl-|'/(?:psm|mp|sem)[_-])|/dev/shm.*no space left
  shared memory segment /dev/shm/nccl
  failed to (?:allocate|extend|create) .*(?:shared memory|/dev/shm/nccl-\S*)|posix_fallocate failed
  ftruncate failed.*(?:shm|no space)
host-out-of-memory sure
  DefaultCPUAllocator: |^MemoryError\b|ArrayMemoryError|std::bad_alloc
  ^(?!.*\bibv_)(?!.*static TLS).*Cannot allocate memory|\[Errno 12\]
  Unable to allocate [\d.]+ [KMGT]iB for an array|JavaScript heap out of memory
disk-full root
  low on resource: ephemeral-storage|DiskPressure +True|had condition: \[DiskPressure
  ephemeral.* storage (?:usage exceeds|limit)|EmptyDir volume .* exceeds the limit
  (?:pull|register|extract|unpack).*no space left|FreeDiskSpaceFailed|NodeHasDiskPressure
disk-full sure
  \[Errno (?:28|122|27)\]|no space left on device|\bENOSPC\b|\bEDQUOT\b|StorageFull
  disk quota exceeded|PytorchStreamWriter failed writing|file write failed|no inodes|disk is full
  filesystem is full|Not enough free space to write
disk-full likely
  basic_ios::clear: iostream error|\. unexpected pos \d+ vs|requested and \d+ written
too-many-files sure
  \[Errno (?:23|24)\]|too many open files|received 0 items of ancdata|\bE[MN]FILE\b
  inotify (?:instance|watch) limit|file table overflow
too-many-processes sure
  can't start new thread|BlockingIOError: \[Errno 11\]|pthread_create failed
  (?:fork|thread|clone|process)\b.*resource temporarily unavailable|cannot fork
  fork rejected by pids controller|thread creation failed|create new OS thread
  what\(\): +Resource temporarily unavailable|resources for OMP thread
""")
