import argparse
import deepspeed
import torch
from torch.utils.data import DataLoader
from lm import Model, Tokens

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
model = Model()
engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
engine.load_checkpoint("ckpt")
loader = DataLoader(Tokens("train.bin"), batch_size=4, shuffle=True)  # fault: loader-without-sampler
for step, x in enumerate(loader):
    loss = engine(x.to(engine.local_rank))
    engine.backward(loss)
    engine.step()
    if step % 100 == 0 and torch.distributed.get_rank() == 0:
        engine.save_checkpoint("ckpt", step)  # fault: some-ranks-only
