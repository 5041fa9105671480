"""One all-reduce on the workers' devices."""

import os

import torch
import torch.distributed as dist

dry = os.environ.get("GPU_DRY") == "1"
backend = "gloo" if dry else "nccl"
if not dry:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # cuda
dist.init_process_group(backend)
total = torch.tensor([float(dist.get_rank() + 1)], device="cpu" if dry else "cuda")
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"sum {int(total.item())} by {backend}", flush=True)
dist.barrier()
dist.destroy_process_group()
