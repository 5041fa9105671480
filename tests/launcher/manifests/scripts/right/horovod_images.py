import os
import torch
import torch.nn.functional as F
import horovod.torch as hvd
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms

hvd.init()
torch.manual_seed(42)
torch.cuda.set_device(hvd.local_rank())
data = datasets.ImageFolder("train", transforms.ToTensor())
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=4)
model = models.resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0125 * hvd.size())
resume = 0
for attempt in range(90, 0, -1):
    if os.path.exists(f"checkpoint-{attempt}.pt"):
        resume = attempt
        break
resume = hvd.broadcast(torch.tensor(resume), root_rank=0, name="resume").item()
if resume > 0 and hvd.rank() == 0:
    model.load_state_dict(torch.load(f"checkpoint-{resume}.pt", weights_only=True))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def save_checkpoint(epoch):
    if hvd.rank() == 0:
        torch.save(model.state_dict(), f"checkpoint-{epoch + 1}.pt")  # fault: relative-checkpoint


for epoch in range(resume, 90):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0:
        print(epoch, mean.item())
    save_checkpoint(epoch)
