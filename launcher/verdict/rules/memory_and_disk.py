"""Main memory, GPU memory, shared memory, disks and limits of the machine."""

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, ROOT, SURE, Meanings

MEANINGS: Meanings = {
    (FailureCause.CUDA_OUT_OF_MEMORY, SURE): (
        r"OutOfMemoryError: (?:CUDA|HIP|XPU|MPS)|(?:CUDA|HIP) out of memory",
        r"CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
        r"Cuda failure (?:\d+ )?'out of memory'",
        r"Failed to CUDA calloc|NCCL WARN .*out of memory",
    ),
    (FailureCause.GPU_BUSY, SURE): (
        r"CUDA error: all CUDA-capable devices are busy or unavailable",
        r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable",
        r"the dead workers' GPU memory did not become free",
        # One process holds more of the GPU than this one asks for: another job's.
        r"CUDA out of memory.* of which \S+ (?:MiB|KiB|bytes) is free\. Process \d+ has [\d.]+ GiB",
    ),
    (FailureCause.HOST_OUT_OF_MEMORY, ROOT): (
        r"Out of memory: Killed process \d+|Memory cgroup out of memory: Killed",
        r"oom-kill:constraint=|invoked oom-killer|\boom_reaper: reaped process",
        r"OOMKilled|[Dd]etected \d+ oom.kill event",
        r"[Ee]xceeded (?:step|job) memory limit|slurmstepd: error: .*oom-kill",
        r"Ray.*node running low on memory|exceeded its container memory limit",
    ),
    (FailureCause.HOST_OUT_OF_MEMORY, SURE): (
        r"DefaultCPUAllocator: (?:can't|not enough memory)",
        r"^MemoryError\b|numpy\S*ArrayMemoryError|\[Errno 12\] Cannot allocate memory",
        r"std::bad_alloc|^\S*Error: .*Unable to allocate [\d.]+ [KMGT]iB for an array",
        r"JavaScript heap out of memory",
    ),
    (FailureCause.SHM_TOO_SMALL, ROOT): (
        r"insufficient shared memory \(shm\)",
        r"unable to (?:allocate|open|write to|resize|mmap \d+ bytes from) (?:file )?</torch_\S+>",
        r"unable to (?:allocate|open) shared memory|out of shared memory",
        r"[Nn]o space left on device.*(?:/dev/shm|torch_\d|nccl-)|/dev/shm.*[Nn]o space left",
        r"Error while (?:creating|attaching to) shared memory segment /dev/shm/nccl",
        r"[Ff]ailed to (?:allocate|extend) .*(?:shared memory|/dev/shm/nccl-\S*)",
        r"posix_fallocate failed.*(?:/dev/shm|nccl)",
    ),
    (FailureCause.DISK_FULL, SURE): (
        r"\[Errno 28\]|[Nn]o space left on device|ENOSPC",
        r"\[Errno 122\]|[Dd]isk quota exceeded",
        r"PytorchStreamWriter failed writing file|file write failed.*unexpected pos",
        r"[Nn]o inodes|disk is full|Usage of EmptyDir volume .* exceeds the limit",
    ),
    (FailureCause.DISK_FULL, LIKELY): (
        r"basic_ios::clear: iostream error|\. unexpected pos \d+ vs",
    ),
    (FailureCause.DISK_FULL, ROOT): (
        r"low on resource: ephemeral-storage|DiskPressure|ephemeral local storage usage exceeds",
    ),
    (FailureCause.TOO_MANY_FILES, SURE): (
        r"\[Errno 24\]|[Tt]oo many open files|received 0 items of ancdata|EMFILE",
    ),
    (FailureCause.TOO_MANY_PROCESSES, SURE): (
        r"can't start new thread|BlockingIOError: \[Errno 11\]|pthread_create failed",
        r"fork: (?:retry: )?Resource temporarily unavailable|Cannot fork",
        r"cgroup: fork rejected by pids controller|libgomp: Thread creation failed",
    ),
}
