"""Every rank wishes at a step of its own; prints at which step each rank learns of what."""

from __future__ import annotations

import torch.distributed as dist

from fabric_train.agreement import Agreement

dist.init_process_group("gloo")
rank = dist.get_rank()
agreement = Agreement(2)
heard = []
for step in range(6):
    heard.append(agreement.settle())
    agreement.propose((int(step == 3 + rank), rank * step))
heard.append(agreement.settle())
every: list[object] = [None] * dist.get_world_size()
dist.all_gather_object(every, heard)
if rank == 0:
    print(every[0], all(one == every[0] for one in every))
dist.destroy_process_group()
