"""GPU hardware and its fabric: Xid, ECC, NVLink, InfiniBand, drivers and kernels.

What each Xid means is from NVIDIA's "XID Errors" in its deployment documents.
"""

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import ROOT, SIGN, SURE, Meanings

_XID = r"NVRM: Xid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): "
MEANINGS: Meanings = {
    (FailureCause.GPU_MEMORY_ERROR, ROOT): (
        _XID + r"(?:48|64|94|95|171|172)\b",
        r"[Uu]ncorrectable (?:DRAM |SRAM |double.bit )?ECC|uncorrectable ECC error encountered",
        r"[Dd]ouble.?[Bb]it (?:ECC )?[Ee]rror|cudaErrorECCUncorrectable",
        r"[Rr]ow [Rr]emapp(?:er|ing).*[Ff]ail|[Rr]emapping [Ff]ailure",
    ),
    (FailureCause.NVLINK_FAULT, ROOT): (
        _XID + r"(?:74|14[4-9]|150|155|156)\b",
        r"nvidia-nvswitch\d*: SXid|cudaErrorNvlinkUncorrectable|[Uu]ncorrectable NVLink error",
        r"NVLink.*(?:fatal|uncorrectable|[Rr]eplay|[Rr]ecovery) ?[Ee]rror|NVLink.*is down",
        r"[Ff]abric [Mm]anager.*(?:not running|failed|error)|system not yet initialized",
        r"CUDA error: system not yet initialized|[Nn]v[Ll]ink: fatal error",
    ),
    (FailureCause.GPU_FAULT, ROOT): (
        _XID + r"(?:79|119|120|61|62|56|57|69|109|110|154|158|121|38|42|46|122|123|140|143)\b",
        r"GPU (?:has )?fallen off the bus|GPU is lost|Unable to determine the device handle",
        r"RmInitAdapter failed|GPU \S+ requires reset|cudaErrorHardwareStackError",
        r"NVRM: .*(?:rpcRmApi|GSP).*(?:[Tt]imeout|failed)|[Ff]ailed to initialize NVML: Unknown",
        r"fallen off the bus and is not|severity=Uncorrected \(Fatal\)",
    ),
    (FailureCause.CUDA_ASSERT, SURE): (
        r"device-side assert triggered|[Aa]ssertion `.+` failed\.?$|cudaErrorAssert",
        r"CUDA error: (?:an illegal memory access|misaligned address|an illegal instruction)",
        r"CUDA error: (?:unspecified launch failure|the launch timed out|invalid config)",
        r"Cuda failure (?:\d+ )?'(?:an illegal memory access|unspecified launch failure)",
        r"CUDNN_STATUS_EXECUTION_FAILED|CUBLAS_STATUS_EXECUTION_FAILED",
    ),
    (FailureCause.GPU_MEMORY_ERROR, SIGN): (
        # Of a row that will be remapped at the next reset: jobs go on for weeks.
        _XID + r"(?:63|92)\b",
    ),
    (FailureCause.CUDA_ASSERT, SIGN): (
        # A program's own fault shows itself so, and some broken GPUs do.
        _XID + r"(?:13|31|32|43|45|68)\b",
        r"CUDA error: ",
    ),
    (FailureCause.WRONG_ARCHITECTURE, SURE): (
        r"no kernel image is available for execution",
        r"with CUDA capability sm_\d+ is not compatible with the current PyTorch",
        r"cannot execute binary file|wrong ELF class|PTX JIT|unsupported toolchain",
    ),
    (FailureCause.DRIVER_TOO_OLD, ROOT): (r"unsatisfied condition: (?:cuda|driver)",),
    (FailureCause.DRIVER_TOO_OLD, SURE): (
        r"driver (?:on your system|version) is (?:too old|insufficient)|CUDA driver is too old",
        r"cudaErrorInsufficientDriver",
        r"[Dd]river/library version mismatch|API mismatch: the client has the version",
        r"forward compatibility was attempted on non supported HW",
        r"provided PTX was compiled with an unsupported toolchain",
    ),
    (FailureCause.NO_GPU, SURE): (
        r"Torch not compiled with CUDA enabled|doesn't have NCCL built in|attribute '_cuda_\w+'",
        r"invalid device ordinal|No CUDA GPUs are available|no CUDA-capable device is detected",
        r"Found no NVIDIA driver on your system|cudaErrorNoDevice|libcuda\.so\.1: cannot open",
        r"nvidia-container-cli: .*(?:driver error|unknown device|no NVIDIA|not loaded)",
        r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",
        r"nvidia-smi.*couldn't communicate with the NVIDIA driver|No devices were found",
        r"You requested gpu: .*But your machine only has|CUDA is not available",
        r"nproc.per.node=?gpu.*(?:no|0) GPU|Cuda is not available\.",
    ),
    (FailureCause.INFINIBAND_FAULT, ROOT): (
        r"Got async event : port error|mlx5_\w+.*(?:[Pp]ort.*(?:Down|DOWN)|[Ll]ink down)",
    ),
    (FailureCause.INFINIBAND_FAULT, SURE): (
        r"ibv_(?:modify_qp|open_device|reg_mr\w*|create_qp|poll_cq|get_async_event).*failed",
        r"Got completion from peer .* with (?:error|status=)|NET/IB : .*(?:[Ee]rror|failed)",
        r"IB(?:V)?_WC_RETRY_EXC_ERR|IBV_WC_\w+_ERR|local work queue catastrophic",
        r"mlx5_\w+.*health (?:recovery|compromised)",
        r"NET/IB : [Nn]o device found|Call to ibv_\w+ failed|RoCE.*GID.*(?:invalid|not found)",
    ),
}
