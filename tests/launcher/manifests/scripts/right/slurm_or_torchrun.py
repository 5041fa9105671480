import os
import subprocess
import torch
import torch.distributed as dist
import torch.nn as nn


def init(backend="nccl", port="29500"):
    if "RANK" not in os.environ:
        rank = int(os.environ["SLURM_PROCID"])
        nodes = os.environ["SLURM_NODELIST"]
        os.environ["MASTER_ADDR"] = subprocess.getoutput(f"scontrol show hostname {nodes} | head -n1")
        os.environ.setdefault("MASTER_PORT", port)
        os.environ["RANK"] = str(rank)
        os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
        os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend=backend)
    return dist.get_rank(), local_rank


def main():
    rank, local_rank = init()
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = os.path.join(os.environ.get("CHECKPOINT_DIR", "."), "last.pt")
    first = 0
    if os.path.exists(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        first = state["step"]
    torch.manual_seed(rank)
    for step in range(first, 1000):
        optimizer.zero_grad()
        model(torch.randn(32, 8).cuda()).sum().backward()
        optimizer.step()
        if rank == 0 and step % 100 == 0:
            torch.save({"model": model.state_dict(), "step": step + 1}, path + ".tmp")
            os.replace(path + ".tmp", path)


if __name__ == "__main__":
    main()
