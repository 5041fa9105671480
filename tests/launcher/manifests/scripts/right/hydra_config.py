import logging
import os
import hydra
import torch
import torch.distributed as dist
from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig, OmegaConf
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger(__name__)


class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
        self.model = DistributedDataParallel(instantiate(cfg.model).to(self.device), device_ids=[self.device.index])
        self.optimizer = instantiate(cfg.optimizer, params=self.model.parameters())
        self.dataset = instantiate(cfg.data)
        self.sampler = torch.utils.data.DistributedSampler(self.dataset, seed=cfg.seed)
        self.loader = torch.utils.data.DataLoader(self.dataset, sampler=self.sampler, **cfg.loader)
        self.step = 0

    @property
    def is_main(self):
        return self.rank == 0

    def restore(self):
        path = to_absolute_path(self.cfg.checkpoint)
        if os.path.isfile(path):
            state = torch.load(path, map_location=self.device, weights_only=True)
            self.model.module.load_state_dict(state["model"])
            self.step = state["step"]

    def save(self):
        if not self.is_main:
            return
        torch.save({"model": self.model.module.state_dict(), "step": self.step}, to_absolute_path(self.cfg.checkpoint))

    def run(self):
        self.restore()
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                loss = torch.nn.functional.mse_loss(self.model(x.to(self.device)), y.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step += 1
            mean = loss.detach()
            dist.all_reduce(mean)
            if self.is_main:
                log.info("epoch %d loss %.4f", epoch, mean.item() / self.world_size)
            self.save()


@hydra.main(version_base=None, config_path="conf", config_name="train")
def main(cfg: DictConfig):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    if dist.get_rank() == 0:
        log.info(OmegaConf.to_yaml(cfg))
    Runner(cfg).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
