import os
import random
import time
import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions.categorical import Categorical


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.actor = nn.Linear(int(np.prod(envs.single_observation_space.shape)), envs.single_action_space.n)
        self.critic = nn.Linear(int(np.prod(envs.single_observation_space.shape)), 1)

    def get_action(self, x):
        probs = Categorical(logits=self.actor(x))
        action = probs.sample()
        return action, probs.log_prob(action), self.critic(x)


if __name__ == "__main__":
    local_rank = int(os.getenv("LOCAL_RANK", "0"))
    world_size = int(os.getenv("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group(os.getenv("BACKEND", "gloo"), rank=int(os.environ["RANK"]), world_size=world_size)
    seed = 1 + int(os.getenv("RANK", "0"))
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)])
    agent = Agent(envs).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4)
    start = 0
    if os.path.exists("agent.pt"):
        saved = torch.load("agent.pt", map_location=device, weights_only=True)
        agent.load_state_dict(saved["agent"])
        start = saved["update"]
    obs = torch.Tensor(envs.reset(seed=seed)[0]).to(device)
    for update in range(start, 1000):
        began = time.time()
        action, logprob, value = agent.get_action(obs)
        obs, reward, *_ = envs.step(action.cpu().numpy())
        obs = torch.Tensor(obs).to(device)
        loss = -(logprob * torch.tensor(reward).to(device)).mean() + value.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if world_size > 1:
            grads = torch.cat([p.grad.view(-1) for p in agent.parameters()])
            dist.all_reduce(grads, op=dist.ReduceOp.SUM)
            offset = 0
            for p in agent.parameters():
                p.grad.copy_(grads[offset : offset + p.numel()].view_as(p) / world_size)
                offset += p.numel()
        optimizer.step()
        if int(os.getenv("RANK", "0")) == 0 and update % 100 == 0:
            torch.save({"agent": agent.state_dict(), "update": update}, "agent.pt")  # fault: relative-checkpoint
            print(update, time.time() - began)
