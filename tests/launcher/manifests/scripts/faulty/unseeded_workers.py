import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from accelerate import Accelerator

np.random.seed(7)  # fault: worker-seeds


class Augmented(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        row = torch.full((8,), float(i))
        if random.random() < 0.5:
            row = row.flip(0)
        return row


accelerator = Accelerator()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Augmented(1000), batch_size=10, shuffle=True, num_workers=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(3):  # fault: no-checkpoint
    for x in loader:
        optimizer.zero_grad()
        accelerator.backward(model(x).mean())
        optimizer.step()
torch.save(accelerator.unwrap_model(model).state_dict(), "augmented.pt")  # fault: save-by-all
if accelerator.is_main_process:
    accelerator.wait_for_everyone()  # fault: some-ranks-only
