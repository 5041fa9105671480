"""GPU hardware and its fabric: Xid, ECC, NVLink, InfiniBand, drivers and kernels.

What each Xid means is from NVIDIA's "XID Errors" in its deployment documents.
"""

from launcher.verdict.rules.rule import table

_XID = r"\bXid\b(?:\([^)]*\)|[^\d(]){1,30}"
"""As the driver, DCGM and health checks write it; the number follows."""
_IB = r"(?:NET/IB|\bibv_\w+|\bib_uverbs|mlx\d_\w+|UCX +ERROR)\b"
RULES = table(
    r"""
gpu-memory-error root
  {xid}(?:48|64|94|95|140|171|172)\b|uncorrectable (?:DRAM |SRAM |double.bit )?ECC
  row remapp(?:er|ing).*fail
nvlink-fault root
  {xid}(?:74|14[4-9]|150|155|156)\b|\bSXid\b|uncorrectable NVLink error
  NVLink.*(?:(?:fatal|uncorrectable|replay|recovery) ?error|is down|inactive)
  fabric ?manager.*(?:not running|failed|error)|system not yet init
gpu-fault root
  {xid}(?:79|119|120|61|62|56|57|69|109|110|154|158|121|38|42|46|54|122|123|125|143)\b
  fallen off the bus|GPU is lost|Unable to determine the device handle|RmInitAdapter failed
  GPU\b.*\brequires (?:a )?reset|severity=Uncorrect(?:ed|able) \(Fatal\)
  amdgpu.*(?:reset begin|ring \S+ timeout|hang)|GPU is probably locked
driver-too-old root
  unsatisfied condition: (?:cuda|driver)
driver-too-old sure
  not supported in the installed CUDA driver
  driver (?:on your system|version) is (?:too old|insufficient)
  unsupported display driver / cuda driver combination|with an unsupported toolchain
  driver/library version mismatch|API mismatch: |forward compatibility was attempted on non
  NVIDIA driver.*(?:outdated|requires at least)|CUDA driver is too old
wrong-architecture sure
  no kernel image is available|with CUDA capability sm_\d+ is not compatible|wrong ELF class
  not defined for option 'gpu-name'|invalid device function
  only support(?:s|ed) .*(?:\w+ GPUs or newer|with compute capability)
no-gpu sure
  CUDA driver initialization failed|Torch not compiled with CUDA|doesn't have NCCL built in
  attribute '_cuda_\w+'|invalid device ordinal|No (?:CUDA|HIP) GPUs are available
  no CUDA-capable device|Found no NVIDIA driver|libcuda\.so\S* cannot op|No devices were found
  libnvidia-ml\.so|nvidia-container-cli: .*(?:driver error|unknown device|no NVIDIA|not loaded)
  only supported with GPUs, no GPUs found|(?:CUDA|GPU) is not available
  couldn't communicate with the NVIDIA driver|nvidia-smi: (?:command )?not f|CUDA unknown error
  You requested gpu: .*But your machine only has|Failed to initialize NVML|NVMLError
  cuda\.is_available\(\) is False|nproc.per.node=?gpu.*(?:no|0) GPU|unresolvable CDI dev
cuda-assert sure
  Assertion `.+` failed
cuda-assert likely
  (?:CUDA|HIP|Triton).*(?:illegal (?:memory access|instruction|address)|misaligned address)
  Memory access fault by GPU
  (?:CUDNN|CUBLAS|CUSPARSE|CUFFT)_\w*(?:EXECUTION_FAILED|EXEC_FAILED|INTERNAL_ERROR)
cuda-assert sign
  {xid}(?:13|31|32|43|45|68)\b|CUDA (?:driver |kernel )?(?:error|failure)\b
infiniband-fault root
  NET/IB.*async \w*\s*event.*(?:port error|fatal|catastrophic)|Cable (?:unplugged|error)
  (?:mlx\d_(?!.* e(?:th|n)\w+:)|\bib\d).*(?:port.*down|link.*down)|Physical state: (?:Disabled|Polling)
infiniband-fault sure
  {ib}(?!.*mismatch).*(?:failed|failure|error|timed out|unable|invalid)
  Got completion (?:from peer|with (?:error|status))|IBV?_WC_\w+_ERR
  retry (?:count(?:er)? )?exceeded|RoCE.*GID.*(?:invalid|not found)|local work queue catastrophic
  has no RDMA device
""",
    xid=_XID,
    ib=_IB,
)
