import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from parts import Rows, build, is_chief_worker

CONFIG = {"device": "cuda:0", "backend": "nccl", "loader": {"batch_size": 8, "shuffle": True}}  # fault: first-gpu


class Job:
    def __init__(self, config):
        self.config = config
        dist.init_process_group(config["backend"])  # fault: nccl-without-device
        self.model = DDP(build().to(config["device"]))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(Rows(), **config["loader"])  # fault: loader-without-sampler

    def run(self):
        for epoch in range(10):
            for x in self.loader:
                self.optimizer.zero_grad()
                self.model(x).mean().backward()
                self.optimizer.step()
            if is_chief_worker():
                dist.barrier()  # fault: some-ranks-only
                torch.save(self.model.state_dict(), "job.pt")  # fault: relative-checkpoint

    def resume(self):
        self.model.load_state_dict(torch.load("job.pt", weights_only=True))


if __name__ == "__main__":
    job = Job(CONFIG)
    job.resume()
    job.run()
