"""What lines of logs mean: each family's rules, on texts as programs write them."""

from __future__ import annotations

import pytest

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.all import judge_line
from launcher.verdict.rules.rule import Weight
from launcher.verdict.scan import LogLine, find_telling

_LINES = {
    FailureCause.MISSING_MODULE: (
        "ModuleNotFoundError: No module named 'einops'",
        "/usr/bin/python3: No module named trainer",
        "ImportError: cannot import name 'foo' from 'bar' (/code/bar.py)",
    ),
    FailureCause.WRONG_ARGUMENT: (
        "train.py: error: unrecognized arguments: --local-rank=0",
        "train.py: error: argument --lr: invalid float value: 'fast'",
        "torchrun: error: the following arguments are required: training_script, ...",
    ),
    FailureCause.MISSING_FILE: (
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
        "python: can't open file '/code/trian.py': [Errno 2] No such file or directory",
    ),
    FailureCause.PERMISSION: (
        "PermissionError: [Errno 13] Permission denied: '/data/out'",
        "OSError: [Errno 30] Read-only file system: '/ckpt/last.pt'",
    ),
    FailureCause.PICKLING: (
        "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
        "_pickle.PicklingError: Can't pickle <function f at 0x7f>: attribute lookup failed",
    ),
    FailureCause.WRONG_SHAPES: (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x10 and 12x4)",
        "RuntimeError: Error(s) in loading state_dict for Net:",
    ),
    FailureCause.NAN_LOSS: (
        "FloatingPointError: loss is nan at step 120",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "epoch 3 step 120 loss: nan",
    ),
    FailureCause.CRASHED: (
        "Fatal Python error: Segmentation fault",
        "kernel: python[4242]: segfault at 10 ip 00007f sp 00007f error 4 in libfoo.so",
    ),
    FailureCause.STOPPED_BY_USER: (
        "KeyboardInterrupt",
        "srun: Job step aborted: slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01 ***",
    ),
    FailureCause.CUDA_OUT_OF_MEMORY: (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total"
        " capacity of 79.15 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this"
        " process has 77.93 GiB memory in use.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    FailureCause.HOST_OUT_OF_MEMORY: (
        "kernel: Out of memory: Killed process 4242 (python) total-vm:99kB, anon-rss:99kB",
        "kernel: Memory cgroup out of memory: Killed process 4242 (python)",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have"
        " been OOM Killed.",
        "Last State: Terminated  Reason: OOMKilled  Exit Code: 137",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't"
        " allocate memory: you tried to allocate 99 bytes. Error code 12 (Cannot allocate memory)",
    ),
    FailureCause.SHM_TOO_SMALL: (
        "RuntimeError: DataLoader worker (pid 42) is killed by signal: Bus error. It is possible"
        " that dataloader's workers are out of shared memory. Please try to raise your shared"
        " memory limit.",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient"
        " shared memory (shm).",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_42_1_0>: Success (0)",
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-ab (size 9637888)",
    ),
    FailureCause.DISK_FULL: (
        "OSError: [Errno 28] No space left on device: '/ckpt/last.pt'",
        "RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos 64 vs 0:"
        " PytorchStreamWriter failed writing file data/3: file write failed",
        "OSError: [Errno 122] Disk quota exceeded",
        "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi",
    ),
    FailureCause.TOO_MANY_FILES: ("OSError: [Errno 24] Too many open files: '/data/7.bin'",),
    FailureCause.TOO_MANY_PROCESSES: ("RuntimeError: can't start new thread",),
    FailureCause.PORT_TAKEN: (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local"
        " network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message:"
        " address already in use",
        "docker: Error response from daemon: driver failed: Bind for 0.0.0.0:29500 failed: port is"
        " already allocated.",
    ),
    FailureCause.DNS: (
        "socket.gaierror: [Errno -2] Name or service not known",
        "curl: (6) Could not resolve host: mirror.example",
    ),
    FailureCause.PROXY: (
        "requests.exceptions.ProxyError: HTTPConnectionPool(host='10.0.0.7', port=29400): Max"
        " retries exceeded (Caused by ProxyError('Unable to connect to proxy'))",
    ),
    FailureCause.WRONG_INTERFACE: (
        "n1:9:9 [0] bootstrap.cc:37 NCCL WARN Bootstrap : no socket interface found",
        "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to"
        " find address for: eth7",
        "Last error: ncclSocketInit: connecting to address  with family 59936 is neither"
        " AF_INET(2) nor AF_INET6(10)",
        "n1:9:9 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 172.17.0.2<38847>"
        " failed : Software caused connection abort",
    ),
    FailureCause.FIREWALL: ("OSError: [Errno 113] No route to host",),
    FailureCause.MASTER_UNREACHABLE: (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while"
        " trying to connect to (10.0.0.9, 29500).",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2"
        " clients joined.",
    ),
    FailureCause.NETWORK_CUT: (
        "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:54949.",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a"
        " network error, ncclRemoteError",
    ),
    FailureCause.GPU_FAULT: (
        "NVRM: Xid (PCI:0000:b3:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the"
        " bus.",
        "NVRM: Xid (PCI:0000:1b:00): 119, pid=9, Timeout after 6s of waiting for RPC response from"
        " GPU0 GSP!",
        "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
    ),
    FailureCause.GPU_MEMORY_ERROR: (
        "NVRM: Xid (PCI:0000:b3:00): 48, pid=9, An uncorrectable double bit error (DBE) has been"
        " detected on GPU in the framebuffer at partition 3, subpartition 0.",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:b3:00): 94, pid=9, Contained ECC error.",
    ),
    FailureCause.NVLINK_FAULT: (
        "NVRM: Xid (PCI:0000:b3:00): 74, pid=9, NVLink: fatal error detected on link 3(0x1, 0x0)",
        "RuntimeError: CUDA error: system not yet initialized",
    ),
    FailureCause.INFINIBAND_FAULT: (
        "n1:9:9 [4] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer"
        " 10.0.0.2<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
        "kernel: mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN",
    ),
    FailureCause.CUDA_ASSERT: (
        "RuntimeError: CUDA error: device-side assert triggered",
        "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block:"
        " [0,0,0], thread: [4,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        "NVRM: Xid (PCI:0000:b3:00): 31, pid=9, Ch 00000010, MMU Fault: ENGINE GRAPHICS",
    ),
    FailureCause.WRONG_ARCHITECTURE: (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "exec /usr/bin/python: exec format error",
    ),
    FailureCause.DRIVER_TOO_OLD: (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update",
        "Failed to initialize NVML: Driver/library version mismatch",
    ),
    FailureCause.NO_GPU: (
        "RuntimeError: CUDA error: invalid device ordinal",
        "RuntimeError: No CUDA GPUs are available",
    ),
    FailureCause.GPU_BUSY: (
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    ),
    FailureCause.MISMATCHED_COLLECTIVE: (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running"
        " collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[20]),"
        " but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3,"
        " OpType=REDUCE, TensorShape=[20]).",
    ),
    FailureCause.SHAPE_MISMATCH_IN_COLLECTIVE: (
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 10 params, while"
        " rank 1 has inconsistent 12 params.",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running"
        " collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[20]),"
        " but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3,"
        " OpType=ALLREDUCE, TensorShape=[10]).",
        "RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:446] op.preamble.length <="
        " op.nbytes. 4000 vs 40",
    ),
    FailureCause.MISSING_COLLECTIVE: (
        "[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught"
        " collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4,"
        " Timeout(ms)=600000) ran for 600061 milliseconds before timing out.",
        "RuntimeError: Rank 2 failed to pass monitoredBarrier in 30000 ms",
    ),
    FailureCause.NCCL_ERROR: (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled"
        " system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3",
    ),
    FailureCause.DATA_LOADER_WORKER_DIED: (
        "RuntimeError: DataLoader worker (pid 42) is killed by signal: Killed.",
        "RuntimeError: DataLoader worker (pid(s) 42, 43) exited unexpectedly",
    ),
    FailureCause.DATA_STALL: (
        "RuntimeError: DataLoader timed out after 30 seconds",
        "kernel: nfs: server storage1 not responding, still trying",
    ),
    FailureCause.BAD_DATA: (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central"
        " directory",
        "EOFError: Ran out of input",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
    ),
    FailureCause.IMAGE_PULL: (
        'Failed to pull image "reg/x:1": rpc error: manifest for reg/x:1 not found',
        "Warning  Failed  12s  kubelet  Error: ImagePullBackOff",
    ),
    FailureCause.CONTAINER_START: (
        "docker: Error response from daemon: failed to create task: OCI runtime create failed:"
        ' exec: "pyhton": executable file not found in $PATH',
        'Warning  FailedMount  MountVolume.SetUp failed for volume "data": not found',
    ),
    FailureCause.NO_ROOM: (
        "Warning  FailedScheduling  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    ),
    FailureCause.NOT_ALLOWED: (
        'pods is forbidden: User "me" cannot create resource "pods" in API group ""',
        "sbatch: error: Batch job submission failed: Invalid account or account/partition"
        " combination specified",
    ),
    FailureCause.TARGET_UNREACHABLE: (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon"
        " running?",
        "ssh: connect to host gpu7 port 22: Connection refused",
    ),
    FailureCause.TIME_LIMIT: (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "Job was active longer than specified deadline",
    ),
    FailureCause.PREEMPTED: (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01 DUE TO PREEMPTION ***",
        "Warning  Preempted by pod 7 on node n1",
    ),
    FailureCause.NODE_LOST: (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01 DUE TO NODE FAILURE ***",
        "Warning  NodeNotReady  node-controller  Node is not ready",
    ),
    FailureCause.CODE_MISMATCH: ("config hash differs between rank 0 and rank 1",),
}


@pytest.mark.parametrize(
    ("cause", "text"), [(cause, text) for cause, texts in _LINES.items() for text in texts]
)
def test_a_line_means_its_cause(cause: FailureCause, text: str) -> None:
    (line,) = find_telling([text.encode()], LogLine(file="log", number=0, text=""))
    found = judge_line(line)
    assert found is not None
    assert found.cause is cause


@pytest.mark.parametrize(
    "text",
    [
        "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
        "W1125 01:02:03.123000 42 torch] The server socket has failed to listen on [::]:29500",
        "[W socket.cpp:464] The client socket has failed to connect to [n1]:29500 (errno: 22)",
        "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
        "epoch 1: 0 errors, 12 warnings, timeout 30 s, loss 0.31",
        "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0",
        "n1:9:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    ],
)
def test_what_is_no_failure_never_weighs_as_one(text: str) -> None:
    found = judge_line(LogLine(file="log", number=1, text=text))
    assert found is None or found.weight < Weight.LIKELY
