"""Main memory, GPU memory, shared memory, disks and limits of the machine."""

from launcher.verdict.rules.rule import table

RULES = table(r"""
gpu-busy sure
  CUDA-capable device\S* (?:is/)?are busy|dead workers' GPU memory did not become free
# Another process holds gigabytes, and this one less than one.
  \bProcess \d+ has [\d.]+ GiB(?!.*(?:allocated memory|this process has) [\d.]+ GiB)
cuda-out-of-memory sure
  \b(?:CUDA|HIP|XPU|MPS)\b.{0,25}out of memory|OutOfMemoryError|\w+_ALLOC_FAILED
  Failed to CUDA (?:calloc|malloc|host ?alloc)|NCCL WARN .*out of memory
cuda-out-of-memory likely
  CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED
host-out-of-memory root
  out of memory.*: Kill(?:ed)? process|cgroup out of memory|oom_reaper: reaped|oom-kill:constraint=
  invoked oom-killer|killed by the OOM killer|earlyoom: sending SIG|systemd-oomd.*Killed
  OOMKill(?:ed|ing)\b(?!\W+false)|System OOM encountered|detected \d+ oom.kill event
  slurmstepd: error: .*oom.kill|task \d+: Out Of Memory|job killed: \w*mem\b.*exceeded
  exceeded (?:its container |step |job |virtual )*memory limit|\bOUT_OF_ME|TERM_MEMLIMIT
  low on (?:resource: )?memory|MemoryPressure\b(?!.*False)|insufficientmemory|due to memory press
shm-too-small sure
  insufficient shared memory|out of shared memory|is not enough space for \S*shm
  ^(?!.*too many open).*unable to (?:\w+ shared mem|.*</?torch_\S*>)
  no space left on device.*(?:/dev/shm|torch_\d|nccl-|'/(?:psm|mp|sem)[_-])|/dev/shm.*no space left
  shared memory segment /dev/shm/nccl
  failed to (?:allocate|extend|create) .*(?:shared memory|/dev/shm/nccl-\S*)|posix_fallocate failed
  ftruncate failed.*(?:shm|no space)
host-out-of-memory sure
  DefaultCPUAllocator: |^MemoryError\b|ArrayMemoryError|std::bad_alloc|<ENOMEM>
  ^(?!.*\bibv_)(?!.*static TLS).*Cannot allocate memory|heap out of memory
  Unable to allocate [\d.]+ [KMGT]iB for an array
disk-full root
  low on resource: ephemeral-storage|DiskPressure\b(?!.*False)|FreeDiskSpaceFailed
  ephemeral.* storage (?:usage exceeds|limit)|EmptyDir volume .* exceeds the limit
  (?:pull|register|extract|unpack).*no space left
disk-full sure
  <ENOSPC>|<EDQUOT>|<EFBIG>|no space left on device|disk quota exceeded|file too large
  PytorchStreamWriter failed writing|file write failed|no inodes|disk is full|filesystem is full
  StorageFull|Not enough free space to write
disk-full likely
  basic_ios::clear: iostream error|\. unexpected pos \d+ vs|requested and \d+ written
too-many-files sure
  <ENFILE>|<EMFILE>|too many open files|received 0 items of ancdata|file table overflow
  inotify (?:instance|watch) limit
too-many-processes sure
  can't start new thread|BlockingIOError: .*<EAGAIN>|pthread_create failed|cannot fork
  (?:fork|thread|clone|process)\b.*resource temporarily unavailable|fork rejected by pids contr
  thread creation failed|create new OS thread|what\(\): +Resource temporarily unavailable
""")
