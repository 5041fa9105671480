"""GPU hardware and its fabric: Xid, ECC, NVLink, InfiniBand, drivers and kernels.

What each Xid means is from NVIDIA's "XID Errors" in its deployment documents.
"""

from launcher.verdict.rules.rule import table

_XID = r"\bXid\b(?:\([^)]*\)|[^\d(]){1,30}"
"""An Xid as the driver, DCGM and health checks write it; the number follows."""
_IB = r"(?:NET/IB|\bibv_\w+|\bib_uverbs|mlx\d_\w+|UCX +ERROR)\b"
RULES = table(
    r"""
gpu-memory-error root
  {xid}(?:48|64|94|95|140|171|172)\b|uncorrectable (?:DRAM |SRAM |double.bit )?ECC
  row remapp(?:er|ing).*fail
nvlink-fault root
  {xid}(?:74|14[4-9]|150|155|156)\b|\bSXid\b|fabric ?manager.*(?:not running|failed|error)
  uncorrectable NVLink error
  NVLink.*(?:(?:fatal|uncorrectable|replay|recovery) ?error|is down|inactive)|system not yet init
gpu-fault root
  {xid}(?:79|119|120|61|62|56|57|69|109|110|154|158|121|38|42|46|54|122|123|125|143)\b|GPU is lost
  fallen off the bus|RmInitAdapter failed
  Unable to determine the device handle|GPU\b.*\brequires (?:a )?reset|GPU is probably locked
  severity=Uncorrect(?:ed|able) \(Fatal\)|amdgpu.*(?:reset begin|ring \S+ timeout|hang)
driver-too-old root
  unsatisfied condition: (?:cuda|driver)
driver-too-old sure
  not supported in the installed CUDA driver|unsupported display driver / cuda driver combination
  driver (?:on your system|version) is (?:too old|insufficient)|driver/library version mismatch
  with an unsupported toolchain|API mismatch: |CUDA driver is too old
  forward compatibility was attempted on non|NVIDIA driver.*(?:outdated|requires at least)
wrong-architecture sure
  no kernel image is available|only support(?:s|ed) .*(?:\w+ GPUs or newer|with compute capability)
  with CUDA capability sm_\d+ is not compatible|wrong ELF class|not defined for option 'gpu-name'
  invalid device function|not supported in this architecture
no-gpu sure
  Torch not compiled with CUDA => a torch for CUDA there, or no CUDA in the script
  have NCCL built in => a torch for CUDA there, or the backend gloo
  CUDA driver initialization failed|(?:CUDA|GPU) is not available|nproc.per.node=?gpu.*(?:no|0) GPU
  nvidia-smi: (?:command )?not f|cuda\.is_available\(\) is False
  libcuda\.so\S* cannot op|CUDA unknown error|Failed to initialize NVML
  attribute '_cuda_\w+'|No devices were found|invalid device ordinal|no CUDA-capable device
  Found no NVIDIA driver|No (?:CUDA|HIP) GPUs are available|only supported with GPUs, no GPUs found
  libnvidia-ml\.so|NVMLError|cudaGetDeviceCount
  nvidia-container-cli: .*(?:driver error|unknown device|no NVIDIA|not loaded)|unresolvable CDI dev
  couldn't communicate with the NVIDIA driver|You requested gpu: .*But your machine only has
cuda-assert sure
  Assertion `.+` failed
cuda-assert likely
  (?:CUDA|HIP|Triton).*(?:illegal (?:memory access|instruction|address)|misaligned address)
  Memory access fault by GPU
  (?:CUDNN|CUBLAS|CUSPARSE|CUFFT)_\w*(?:EXECUTION_FAILED|EXEC_FAILED|INTERNAL_ERROR)
cuda-assert sign
  {xid}(?:13|31|32|43|45|68)\b|CUDA (?:driver |kernel )?(?:error|failure)\b
infiniband-fault root
  NET/IB.*async \w*\s*event.*(?:port error|fatal|catastrophic)|Physical state: (?:Disabled|Polling)
  Cable (?:unplugged|error)|(?:mlx\d_(?!.* e(?:th|n)\w+:)|\bib\d).*(?:port.*down|link.*down)
infiniband-fault sure
  {ib}(?!.*mismatch).*(?:failed|failure|error|timed out|unable|invalid)|has no RDMA device
  Got completion (?:from peer|with (?:error|status))|retry (?:count(?:er)? )?exceeded
  IBV?_WC_\w+_ERR|RoCE.*GID.*(?:invalid|not found)|local work queue catastrophic
""",
    xid=_XID,
    ib=_IB,
)
