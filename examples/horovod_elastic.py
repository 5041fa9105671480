"""An elastic script written for Horovod; only its import was changed.

    launcher run examples/horovod_elastic.py --nproc-per-node 2 --max-restarts 3

A commit is written into the job's ``checkpoint_dir``. When a process is lost, or nodes join, all
processes start again and ``train`` goes on from the last commit.
"""

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import fabric_train.horovod as hvd  # was: import horovod.torch as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32, help="of each process")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.02, help="of one process")
parser.add_argument("--batches-per-commit", type=int, default=5)
parser.add_argument("--save", metavar="FILE", help="where rank 0 writes the weights")
args = parser.parse_args()

hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
dataset = TensorDataset(images[:1408], torch.tensor(digits.target[:1408]))
sampler = hvd.elastic.ElasticSampler(dataset)
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    while state.epoch < args.epochs:
        loss = torch.zeros(())
        for batch, (data, target) in enumerate(loader):
            state.optimizer.zero_grad()
            loss = F.cross_entropy(state.model(data), target)
            loss.backward()
            state.optimizer.step()
            state.sampler.record_batch(batch, len(data))
            if (batch + 1) % args.batches_per_commit == 0:
                state.commit()
            else:
                state.check_host_updates()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()
        mean = hvd.allreduce(loss.detach(), name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: loss {mean:.4f}", flush=True)


def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = args.lr * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
if args.save and hvd.rank() == 0:
    torch.save(model.state_dict(), args.save)
