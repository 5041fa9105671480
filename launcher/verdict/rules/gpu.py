"""GPU hardware and its fabric: Xid, ECC, NVLink, InfiniBand, drivers and kernels.

What each Xid means is from NVIDIA's "XID Errors" in its deployment documents.
"""

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, ROOT, SIGN, SURE, Meanings

_XID = r"\bXid\b(?:\([^)]*\)|[^\d(]){1,30}"
"""As the driver, DCGM and health checks write it; the number follows."""
_IB = r"(?:NET/IB|\bibv_\w+|\bib_uverbs|mlx\d_\w+|UCX +ERROR)\b"
MEANINGS: Meanings = {
    (FailureCause.GPU_MEMORY_ERROR, ROOT): (
        _XID + r"(?:48|64|94|95|140|171|172)\b",
        r"uncorrectable (?:DRAM |SRAM |double.bit )?ECC|double.?bit (?:ECC )?error",
        r"cudaErrorECCUncorrectable|row remapp(?:er|ing).*fail|remapping failure(?!.*: no)",
    ),
    (FailureCause.NVLINK_FAULT, ROOT): (
        _XID + r"(?:74|14[4-9]|150|155|156)\b",
        r"\bSXid\b|cudaErrorNvlinkUncorrectable|uncorrectable NVLink error",
        r"NVLink.*(?:fatal|uncorrectable|replay|recovery) ?error|NVLink.*(?:is down|inactive)",
        r"fabric ?manager.*(?:not running|failed|error)|system not yet initialized",
        r"cudaErrorSystemNotReady|NVSwitch.*(?:fatal|failed)",
    ),
    (FailureCause.GPU_FAULT, ROOT): (
        _XID + r"(?:79|119|120|61|62|56|57|69|109|110|154|158|121|38|42|46|54|122|123|125|143)\b",
        r"fallen off the bus|GPU is lost|Unable to determine the device handle",
        r"RmInitAdapter failed|GPU \S+ requires reset|cudaErrorHardwareStackError",
        r"NVRM: .*(?:rpcRmApi|GSP).*(?:timeout|failed)|Failed to initialize NVML: Unknown",
        r"severity=Uncorrect(?:ed|able) \(Fatal\)|amdgpu.*(?:reset begin|ring \S+ timeout|hang)",
    ),
    (FailureCause.DRIVER_TOO_OLD, ROOT): (r"unsatisfied condition: (?:cuda|driver)",),
    (FailureCause.DRIVER_TOO_OLD, SURE): (
        r"driver (?:on your system|version) is (?:too old|insufficient)|CUDA driver is too old",
        r"cudaErrorInsufficientDriver|unsupported display driver / cuda driver combination",
        r"driver/library version mismatch|API mismatch: |built for NVIDIA Driver Release",
        r"forward compatibility was attempted on non.supported HW|with an unsupported toolchain",
    ),
    (FailureCause.WRONG_ARCHITECTURE, SURE): (
        r"no kernel image is available|cudaErrorNoKernelImage|hipErrorNoBinaryForGpu",
        r"with CUDA capability sm_\d+ is not compatible|device kernel image is invalid",
        r"cannot execute binary file|wrong ELF class|PTX JIT|unsupported gpu architecture",
        r"not defined for option 'gpu-name'|only supports? \w+ GPUs or newer",
        r"only supported on GPUs with compute capability",
    ),
    (FailureCause.NO_GPU, SURE): (
        r"Torch not compiled with CUDA|doesn't have NCCL built in|attribute '_cuda_\w+'",
        r"invalid device ordinal|No (?:CUDA|HIP) GPUs are available|no CUDA-capable device",
        r"Found no NVIDIA driver|cudaErrorNoDevice|cudaErrorInvalidDevice|libcuda\.so\S* cannot op",
        r"nvidia-container-cli: .*(?:driver error|unknown device|no NVIDIA|not loaded)",
        r"only supported with GPUs, no GPUs found|No devices were found|libnvidia-ml\.so",
        r"couldn't communicate with the NVIDIA driver|unresolvable CDI devices",
        r"You requested gpu: .*But your machine only has|(?:CUDA|GPU) is not available",
        r"nproc.per.node=?gpu.*(?:no|0) GPU|cuda\.is_available\(\) is False|CUDA unknown error",
        r"Unexpected error from cudaGetDeviceCount|no NVIDIA GPU|nvidia-smi: (?:command )?not f",
    ),
    (FailureCause.CUDA_ASSERT, SURE): (
        r"device-side assert|cudaErrorAssert|thread: \[[\d,]+\] Assertion|Assertion `.+` failed",
    ),
    (FailureCause.CUDA_ASSERT, LIKELY): (
        r"(?:CUDA|HIP|Triton|cuda failure).*(?:illegal (?:memory access|instruction|address)"
        r"|misaligned address|launch (?:failure|timed out)|invalid configuration"
        r"|too many resources requested)|CUDA(?:_ERROR_|Error)(?:Illegal|Launch|Misaligned)\w+",
        r"(?:CUDNN|CUBLAS|CUSPARSE|CUFFT)_\w*(?:EXECUTION_FAILED|EXEC_FAILED|INTERNAL_ERROR)",
        r"Memory access fault by GPU",
    ),
    (FailureCause.GPU_MEMORY_ERROR, SIGN): (
        # Of a row that will be remapped at the next reset: jobs go on for weeks.
        _XID + r"(?:63|92)\b",
    ),
    (FailureCause.CUDA_ASSERT, SIGN): (
        # A program's own fault shows itself so, and some broken GPUs do.
        _XID + r"(?:13|31|32|43|45|68)\b",
        r"CUDA (?:driver |kernel )?(?:error|failure)\b",
    ),
    (FailureCause.INFINIBAND_FAULT, ROOT): (
        r"NET/IB.*async \w*\s*event.*(?:port error|fatal|catastrophic)|Cable (?:unplugged|error)",
        r"(?:mlx\d_|\bib\d).*(?:port.*down|link.*down)|Physical state: (?:Disabled|Polling)",
    ),
    (FailureCause.INFINIBAND_FAULT, SURE): (
        _IB + r"(?!.*mismatch).*(?:failed|failure|error|timed out|unable|invalid)",
        r"Got completion from peer|Got completion with (?:error|status)|IBV?_WC_\w+_ERR",
        r"(?:transport )?retry (?:count(?:er)? )?exceeded|local work queue catastrophic",
        r"health (?:recovery|compromised)|RoCE.*GID.*(?:invalid|not found)|no (?:valid )?GID\b",
        r"has no RDMA device|nvidia.peermem.*(?:not|fail)",
    ),
}
