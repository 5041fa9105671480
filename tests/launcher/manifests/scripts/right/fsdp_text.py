import os
import functools
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from text import build_model, build_data


def setup():
    dist.init_process_group("nccl")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    return rank, local_rank, dist.get_world_size()


def train_epoch(model, rank, local_rank, world_size, loader, optimizer, epoch, sampler):
    model.train()
    total = torch.zeros(2).to(local_rank)
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = model(x.to(local_rank), y.to(local_rank))
        loss.backward()
        optimizer.step()
        total[0] += loss.item()
        total[1] += len(x)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"epoch {epoch} loss {total[0] / total[1]:.4f}")


def main():
    rank, local_rank, world_size = setup()
    data = build_data()
    sampler = DistributedSampler(data, rank=rank, num_replicas=world_size, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, pin_memory=True)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=20000)
    model = FSDP(build_model(), auto_wrap_policy=policy, device_id=torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    if os.path.isdir("dcp"):
        model_state, optim_state = get_state_dict(model, optimizer)
        dcp.load({"model": model_state, "optim": optim_state}, checkpoint_id="dcp")
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optim_state)
    for epoch in range(10):
        train_epoch(model, rank, local_rank, world_size, loader, optimizer, epoch, sampler)
        model_state, optim_state = get_state_dict(model, optimizer)
        dcp.save({"model": model_state, "optim": optim_state}, checkpoint_id="dcp")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
