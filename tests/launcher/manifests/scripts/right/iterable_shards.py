import glob
import json
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, pattern):
        self.files = sorted(glob.glob(pattern))

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        part = dist.get_rank() * workers + worker
        parts = dist.get_world_size() * workers
        for name in self.files[part::parts]:
            with open(name) as file:
                for line in file:
                    yield torch.tensor(json.loads(line)["tokens"])


def latest(folder):
    names = sorted(glob.glob(os.path.join(folder, "step-*.pt")))
    return names[-1] if names else None


def main():
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(50000, 64).to(device), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    if path := latest("ckpt"):
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        step = state["step"]
    loader = DataLoader(Lines("shards/*.jsonl"), batch_size=16, num_workers=4)
    for batch in loader:
        loss = model(batch.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 1000 == 0 and dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "step": step}, f"ckpt/step-{step:08d}.pt")


if __name__ == "__main__":
    main()
