import json
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset


class Corpus(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path) as file:
            for line in file:
                yield torch.tensor(json.loads(line)["tokens"])


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(100, 8).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    ckpt = "corpus.pt"
    if os.path.exists(ckpt):
        model.load_state_dict(torch.load(ckpt, map_location="cpu"))  # fault: load-without-weights-only
    loader = DataLoader(Corpus("train.jsonl"), batch_size=8)  # fault: loader-without-sampler
    for batch in loader:
        optimizer.zero_grad()
        model(batch.cuda()).mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), ckpt)  # fault: save-by-all  # fault: relative-checkpoint


if __name__ == "__main__":
    main()
