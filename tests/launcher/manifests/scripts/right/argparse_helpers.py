import argparse
import datetime
import os
import time
from pathlib import Path
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
import datasets
from models import build_model


def setup_for_distributed(is_master):
    import builtins
    builtin_print = builtins.print

    def print(*args, **kwargs):
        force = kwargs.pop("force", False)
        if is_master or force:
            builtin_print(*args, **kwargs)
    builtins.print = print


def is_dist_avail_and_initialized():
    return dist.is_available() and dist.is_initialized()


def get_world_size():
    return dist.get_world_size() if is_dist_avail_and_initialized() else 1


def get_rank():
    return dist.get_rank() if is_dist_avail_and_initialized() else 0


def is_main_process():
    return get_rank() == 0


def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)


def init_distributed_mode(args):
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        args.rank = int(os.environ["RANK"])
        args.world_size = int(os.environ["WORLD_SIZE"])
        args.gpu = int(os.environ["LOCAL_RANK"])
    elif "SLURM_PROCID" in os.environ:
        args.rank = int(os.environ["SLURM_PROCID"])
        args.gpu = args.rank % torch.cuda.device_count()
    else:
        print("Not using distributed mode")
        args.distributed = False
        return
    args.distributed = True
    torch.cuda.set_device(args.gpu)
    dist.init_process_group(backend="nccl", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    dist.barrier()
    setup_for_distributed(args.rank == 0)


def reduce_dict(values):
    world_size = get_world_size()
    if world_size < 2:
        return values
    with torch.no_grad():
        stacked = torch.stack(list(values.values()))
        dist.reduce(stacked, dst=0)
        if dist.get_rank() == 0:
            stacked /= world_size
        return dict(zip(values, stacked))


def main(args):
    init_distributed_mode(args)
    device = torch.device(args.device)
    seed = args.seed + get_rank()
    torch.manual_seed(seed)
    np.random.seed(seed)
    model, criterion = build_model(args)
    model.to(device)
    model_without_ddp = model
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    optimizer = torch.optim.AdamW(model_without_ddp.parameters(), lr=args.lr)
    dataset = datasets.build(args)
    sampler = DistributedSampler(dataset) if args.distributed else torch.utils.data.RandomSampler(dataset)
    batch_sampler = torch.utils.data.BatchSampler(sampler, args.batch_size, drop_last=True)
    loader = DataLoader(dataset, batch_sampler=batch_sampler, num_workers=args.num_workers)
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=False)
        model_without_ddp.load_state_dict(checkpoint["model"])
        args.start_epoch = checkpoint["epoch"] + 1
    start = time.time()
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            sampler.set_epoch(epoch)
        for samples, targets in loader:
            losses = criterion(model(samples.to(device)), targets.to(device))
            reduced = reduce_dict(losses)
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
        if args.output_dir:
            save_on_master({"model": model_without_ddp.state_dict(), "epoch": epoch}, Path(args.output_dir) / "checkpoint.pth")
        if args.output_dir and is_main_process():
            with (Path(args.output_dir) / "log.txt").open("a") as f:
                f.write(f"{epoch} {reduced}\n")
    print(datetime.timedelta(seconds=int(time.time() - start)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", default=1e-4, type=float)
    parser.add_argument("--batch_size", default=2, type=int)
    parser.add_argument("--epochs", default=300, type=int)
    parser.add_argument("--output_dir", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", default=42, type=int)
    parser.add_argument("--resume", default="")
    parser.add_argument("--start_epoch", default=0, type=int)
    parser.add_argument("--num_workers", default=2, type=int)
    parser.add_argument("--dist_url", default="env://")
    main(parser.parse_args())
