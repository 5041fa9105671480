import lightning as L
import torch

fabric = L.Fabric(accelerator="cpu")  # fault: fabric-cpu
fabric.launch()
fabric.seed_everything(1)
data = torch.utils.data.TensorDataset(torch.randn(512, 8))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
model, optimizer = fabric.setup(net := torch.nn.Linear(8, 8), torch.optim.Adam(net.parameters()))
for epoch in range(10):  # fault: no-checkpoint
    for (x,) in loader:
        optimizer.zero_grad()
        fabric.backward(model(x).pow(2).mean())
        optimizer.step()
    if fabric.global_rank == 0:
        fabric.save("model.ckpt", {"model": model})  # fault: some-ranks-only
