import argparse
import os
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, default_data_collator, get_scheduler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--resume_from_checkpoint", default=None)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    accelerator = Accelerator()
    set_seed(args.seed)
    if accelerator.is_main_process:
        os.makedirs(args.output_dir, exist_ok=True)
    accelerator.wait_for_everyone()
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path)
    with accelerator.main_process_first():
        data = load_dataset("glue", "mrpc").map(lambda rows: tokenizer(rows["sentence1"], rows["sentence2"]), batched=True)
    loader = DataLoader(data["train"], shuffle=True, collate_fn=default_data_collator, batch_size=8)
    eval_loader = DataLoader(data["validation"], collate_fn=default_data_collator, batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    scheduler = get_scheduler("linear", optimizer, 0, args.num_train_epochs * len(loader))
    model, optimizer, loader, eval_loader, scheduler = accelerator.prepare(model, optimizer, loader, eval_loader, scheduler)
    progress = tqdm(range(args.num_train_epochs * len(loader)), disable=not accelerator.is_local_main_process)
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            progress.update(1)
        model.eval()
        right = []
        for batch in eval_loader:
            with torch.no_grad():
                guess = model(**batch).logits.argmax(-1)
            guess, truth = accelerator.gather_for_metrics((guess, batch["labels"]))
            right.append((guess == truth).float())
        accelerator.print(epoch, torch.cat(right).mean())
        accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))
    accelerator.wait_for_everyone()
    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained(args.output_dir, is_main_process=accelerator.is_main_process, save_function=accelerator.save)


if __name__ == "__main__":
    main()
