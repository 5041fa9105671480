"""One rank fails after all have met: ``torchrun ... failing.py [RANK]``, by default rank 1.

The other ranks do nothing wrong; they fall because the one they wait for is gone. Needs torch and
torchrun, nothing of this project.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    failing_rank = int(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("FAILING_RANK", "1"))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    if rank == failing_rank:
        raise ValueError(f"rank {rank} was asked to fail")
    # Never ends well: the failed rank does not take part.
    dist.all_reduce(torch.ones(1))
    print(f"done world_size={dist.get_world_size()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
