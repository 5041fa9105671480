"""A script written for Horovod; only its import was changed.

    launcher run examples/horovod_digits.py --nproc-per-node 2
    mpirun -N 1 launcher node examples/horovod_digits.py    # in an allocation

Digits of scikit-learn instead of MNIST, which would have to be downloaded.
"""

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import fabric_train.horovod as hvd  # was: import horovod.torch as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32, help="of each process")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.02, help="of one process")
parser.add_argument("--momentum", type=float, default=0.5)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
parser.add_argument("--save", metavar="FILE", help="where rank 0 writes the weights")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, kernel_size=3)
        self.fc1 = nn.Linear(16 * 9, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv(x), 2)).flatten(1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def load():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    return TensorDataset(images[:1408], labels[:1408]), TensorDataset(images[1408:], labels[1408:])


def main(args):
    hvd.init()
    torch.manual_seed(42 + hvd.rank())
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
    torch.set_num_threads(1)
    train_data, test_data = load()
    sampler = DistributedSampler(train_data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train_data, batch_size=args.batch_size, sampler=sampler)
    model = Net()
    scale = 1 if args.use_adasum else hvd.size()
    optimizer = optim.SGD(model.parameters(), lr=args.lr * scale, momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    for epoch in range(1, args.epochs + 1):  # launcher: ignore[no-checkpoint]
        model.train()
        sampler.set_epoch(epoch)
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        test(model, test_data, epoch)
    if args.save and hvd.rank() == 0:
        torch.save(model.state_dict(), args.save)


def test(model, data, epoch):
    model.eval()
    images, labels = data[hvd.rank() :: hvd.size()]
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean()
    accuracy = hvd.allreduce(right, name="accuracy").item()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main(parser.parse_args())
