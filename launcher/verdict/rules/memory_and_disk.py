"""Main memory, GPU memory, shared memory, disks and limits of the machine."""

from launcher.verdict.rules.rule import table

RULES = table(r"""
# Of GPUs: another process holds gigabytes, and this one less than one.
gpu-busy sure
  CUDA-capable device\S* (?:is/)?are busy
  \bProcess \d+ has [\d.]+ GiB(?!.*(?:allocated memory|this process has) [\d.]+ GiB)
cuda-out-of-memory sure
  \b(?:CUDA|HIP|XPU|MPS)\b.{0,25}out of memory|\w+_ALLOC_FAILED
cuda-out-of-memory likely
  CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED
host-out-of-memory root
  out of memory.*: Kill(?:ed)? process|oom_reaper: reaped|systemd-oomd.*Killed
  oom.?kill(?!\w*\W+false)|task \d+: Out Of Memory|job killed: \w*mem\b.*exceeded
  exceeded (?:its container |step |job |virtual )*memory limit|\bOUT_OF_ME
  low on (?:resource: )?memory|MemoryPressure\b(?!.*False)|System OOM encountered
  due to memory press|insufficientmemory|TERM_MEMLIMIT
shm-too-small sure
  insufficient shared memory|out of shared memory
  ^(?!.*too many open).*unable to (?:\w+ shared mem|.*</?torch_\S*>)
  no space left on device.*(?:/dev/shm|torch_\d|nccl-|'/(?:psm|mp|sem)[_-])|/dev/shm.*no space left
  shared memory segment /dev/shm/nccl
  failed to (?:allocate|extend|create) .*(?:shared memory|/dev/shm/nccl-\S*)|posix_fallocate failed
  ftruncate failed.*(?:shm|no space)|is not enough space for \S*shm
host-out-of-memory sure
  ^MemoryError\b|ArrayMemoryError|std::bad_alloc
  ^(?!.*\bibv_)(?!.*static TLS).*Cannot allocate memory|heap out of memory
disk-full root
  low on resource: ephemeral-storage|DiskPressure\b(?!.*False)
  ephemeral.* storage (?:usage exceeds|limit)|EmptyDir volume .* exceeds the limit
  FreeDiskSpaceFailed
disk-full sure
  <ENOSPC>|<EDQUOT>|<EFBIG>|no space left on device|disk quota exceeded|file write failed
  disk is full|Not enough free space to write|filesystem is full|no inodes
disk-full likely
  \. unexpected pos \d+ vs|requested and \d+ written
too-many-files sure
  <EMFILE>|too many open files|received 0 items of ancdata|inotify (?:instance|watch) limit
  file table overflow|file-max limit|<ENFILE>
too-many-processes sure
  can't start new thread|BlockingIOError: .*<EAGAIN>|pthread_create failed
  (?:fork|thread|clone|process)\b.*resource temporarily unavailable|fork rejected by pids contr
  what\(\): +Resource temporarily unavailable|create new OS thread|cannot fork
""")
