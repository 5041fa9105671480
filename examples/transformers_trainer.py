"""A language model with Hugging Face's Trainer that survives what clusters do to it.

    launcher run transformers_trainer.py --nproc-per-node 2 --set checkpoint_dir=checkpoints

What comes from this project is marked with ``# safe``. Model and data are made on the spot.
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from fabric_train.transformers import with_continuity  # safe


def make_samples(number: int, length: int = 16) -> list[dict[str, torch.Tensor]]:
    """Sequences that count up from a random number."""
    starts = torch.randint(0, 32, (number, 1), generator=torch.Generator().manual_seed(0))
    tokens = (starts + torch.arange(length)) % 32
    return [{"input_ids": row, "labels": row} for row in tokens]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=12)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    set_seed(1)
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), options.dropout)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, **ends, **dropout)
    )
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir="output",
            use_cpu=not torch.cuda.is_available(),
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            dataloader_num_workers=options.workers,
            dataloader_drop_last=True,
            learning_rate=0.01,
            logging_steps=2,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=make_samples(490),
    )
    trainer = with_continuity(trainer)  # safe
    trainer.train()
    if trainer.is_world_process_zero():
        print(f"done: {trainer.state.global_step} steps, {trainer.args.world_size} processes")


if __name__ == "__main__":
    main()
