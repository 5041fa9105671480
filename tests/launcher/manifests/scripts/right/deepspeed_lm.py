import argparse
import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from mylm import LanguageModel, TextData


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--ckpt_dir", default="checkpoints")
    return deepspeed.add_config_arguments(parser).parse_args()


def main():
    args = get_args()
    deepspeed.init_distributed()
    model = LanguageModel()
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    data = TextData("train.bin")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=engine.train_micro_batch_size_per_gpu(), sampler=sampler)
    _, client = engine.load_checkpoint(args.ckpt_dir)
    start = client["epoch"] if client else 0
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            loss = engine(x.to(engine.device), y.to(engine.device))
            engine.backward(loss)
            engine.step()
            if step % 100 == 0 and dist.get_rank() == 0:
                print(epoch, step, loss.item())
        engine.save_checkpoint(args.ckpt_dir, client_state={"epoch": epoch + 1})


if __name__ == "__main__":
    main()
