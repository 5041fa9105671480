"""Main memory, GPU memory, shared memory, disks and limits of the machine."""

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, ROOT, SURE, Meanings

MEANINGS: Meanings = {
    (FailureCause.GPU_BUSY, SURE): (
        r"CUDA-capable device\S* (?:is/)?are busy|cudaErrorDevicesUnavailable",
        r"the dead workers' GPU memory did not become free|in use by another client",
        # Another process holds gigabytes, and this one less than one.
        r"\bProcess \d+ has [\d.]+ GiB(?!.*(?:allocated memory|this process has) [\d.]+ GiB)",
    ),
    (FailureCause.CUDA_OUT_OF_MEMORY, SURE): (
        r"\b(?:CUDA|HIP|XPU|MPS)\b.{0,25}out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
        r"CUDA(?:_ERROR_|Error)(?:OUT_OF_MEMORY|MemoryAllocation)|\w+_ALLOC_FAILED",
        r"Failed to CUDA (?:calloc|malloc|host ?alloc)|NCCL WARN .*out of memory",
    ),
    (FailureCause.CUDA_OUT_OF_MEMORY, LIKELY): (r"CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED",),
    (FailureCause.HOST_OUT_OF_MEMORY, ROOT): (
        r"out of memory.*: Kill(?:ed)? process|cgroup out of memory|oom_reaper: reaped",
        r"oom-kill:constraint=|invoked oom-killer|killed by the OOM killer|earlyoom: sending SIG",
        r"systemd-oomd.*Killed|OOMKill(?:ed|ing)\b(?!\W+false)|System OOM encountered",
        r"detected \d+ oom.kill event|slurmstepd: error: .*oom.kill|task \d+: Out Of Memory",
        r"exceeded (?:step |job |virtual )*memory limit|\bOUT_OF_ME|TERM_MEMLIMIT",
        r"exceeded its container memory limit|job killed: \w*mem\b.*exceeded",
        r"running low on memory|low on resource: memory|had condition: \[MemoryPressure",
        r"MemoryPressure +True|NodeHasInsufficientMemory|due to memory pressure",
    ),
    (FailureCause.SHM_TOO_SMALL, SURE): (
        r"insufficient shared memory|out of shared memory|is not enough space for \S*shm",
        r"^(?!.*too many open).*unable to (?:\w+ shared mem|.*</?torch_\S*>)",
        r"no space left on device.*(?:/dev/shm|torch_\d|nccl-|'/(?:psm|mp|sem)[_-])",
        r"/dev/shm.*no space left|shared memory segment /dev/shm/nccl",
        r"failed to (?:allocate|extend|create) .*(?:shared memory|/dev/shm/nccl-\S*)",
        r"posix_fallocate failed|ftruncate failed.*(?:shm|no space)",
    ),
    (FailureCause.HOST_OUT_OF_MEMORY, SURE): (
        r"DefaultCPUAllocator: |^MemoryError\b|ArrayMemoryError|std::bad_alloc",
        r"^(?!.*\bibv_)(?!.*static TLS).*Cannot allocate memory|\[Errno 12\]",
        r"Unable to allocate [\d.]+ [KMGT]iB for an array|JavaScript heap out of memory",
    ),
    (FailureCause.DISK_FULL, ROOT): (
        r"low on resource: ephemeral-storage|DiskPressure +True|had condition: \[DiskPressure",
        r"ephemeral.* storage (?:usage exceeds|limit)|EmptyDir volume .* exceeds the limit",
        r"(?:pull|register|extract|unpack).*no space left|FreeDiskSpaceFailed|NodeHasDiskPressure",
    ),
    (FailureCause.DISK_FULL, SURE): (
        r"\[Errno (?:28|122|27)\]|no space left on device|\bENOSPC\b|\bEDQUOT\b|StorageFull",
        r"disk quota exceeded|PytorchStreamWriter failed writing|file write failed",
        r"no inodes|disk is full|filesystem is full|Not enough free space to write",
    ),
    (FailureCause.DISK_FULL, LIKELY): (
        r"basic_ios::clear: iostream error|\. unexpected pos \d+ vs|requested and \d+ written",
    ),
    (FailureCause.TOO_MANY_FILES, SURE): (
        r"\[Errno (?:23|24)\]|too many open files|received 0 items of ancdata|\bE[MN]FILE\b",
        r"inotify (?:instance|watch) limit|file table overflow",
    ),
    (FailureCause.TOO_MANY_PROCESSES, SURE): (
        r"can't start new thread|BlockingIOError: \[Errno 11\]|pthread_create failed",
        r"(?:fork|thread|clone|process)\b.*resource temporarily unavailable|cannot fork",
        r"fork rejected by pids controller|thread creation failed|create new OS thread",
        r"what\(\): +Resource temporarily unavailable|resources for OMP thread",
    ),
}
