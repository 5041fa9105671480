"""Main memory, GPU memory, shared memory, disks and limits of the machine."""

from launcher.verdict.rules.rule import table

RULES = table(r"""
# Of GPUs: another process holds gigabytes, and this one less than one.
gpu-busy sure
  CUDA-capable device\S* (?:is/)?are busy
  \bProcess \d+ has [\d.]+ GiB(?!.*(?:allocated memory|this process has) [\d.]+ GiB)
cuda-out-of-memory sure
  \b(?:CUDA|HIP|XPU|MPS)\b.{0,25}out of memory|\w+_ALLOC_FAILED|RESOURCE_EXHAUSTED: |to CUDA \w+lloc
cuda-out-of-memory likely
  CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED
host-out-of-memory root
  out of memory.*: Kill(?:ed)? process|exceeded (?:its container |step |job |virtual )*memory limit
  oom_reaper: reaped|\bOUT_OF_ME|due to memory press|insufficientmemory|TERM_MEMLIMIT
  systemd-oomd.*Killed|oom.?kill(?!\w*\W+false)|task \d+: Out Of Memory|System OOM encountered
  job killed: \w*mem\b.*exceeded|low on (?:resource: )?memory|MemoryPressure\b(?!.*False)
shm-too-small sure
  insufficient shared memory|shared memory segment /dev/shm/nccl|ftruncate failed.*(?:shm|no space)
  out of shared memory
  ^(?!.*too many open).*unable to (?:\w+ shared mem|.*</?torch_\S*>)|is not enough space for \S*shm
  no space left on device.*(?:/dev/shm|torch_\d|nccl-|'/(?:psm|mp|sem)[_-])|/dev/shm.*no space left
  failed to (?:allocate|extend|create) .*(?:shared memory|/dev/shm/nccl-\S*)|posix_fallocate failed
host-out-of-memory sure
  heap out of memory
# The process was refused memory; a container's limit kills instead.
  (?:^|: )MemoryError\b|ArrayMemoryError|std::bad_alloc => ulimit -v unlimited there, or hold less
  OpenBLAS error: Memory allocation => ulimit -v unlimited there, or hold less
  failed to map segment from => ulimit -v unlimited there; or the file's disk is mounted noexec
  ^(?!.*\bibv_)(?!.*static TLS).*Cannot allocate memory => ulimit -v unlimited there, or hold less
disk-full root
  low on resource: ephemeral-storage|DiskPressure\b(?!.*False)|FreeDiskSpaceFailed
  ephemeral.* storage (?:usage exceeds|limit)|EmptyDir volume .* exceeds the limit
disk-full sure
  ^(?!.*inotify).*<ENOSPC>|<EDQUOT>|<EFBIG>|file write failed|disk is full|no inodes
  no space left on device|disk quota exceeded|Not enough free space to write|filesystem is full
disk-full likely
  \. unexpected pos \d+ vs|requested and \d+ written|basic_ios::clear
too-many-files sure
  <EMFILE>|<ENFILE>|file table overflow
  too many open files|received 0 items of ancdata|inotify (?:instance|watch) limit|file-max limit
too-many-processes sure
  can't start new thread|what\(\): +Resource temporarily unavailable|fork rejected by pids contr
  BlockingIOError: .*<EAGAIN>|(?:fork|thread|clone|process)\b.*resource temporarily unavailable
  pthread_create failed|create new OS thread|cannot fork|OMP: Error #34
""")
