import os
from dataclasses import dataclass, field
from transformers import (
    AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, HfArgumentParser, Trainer, TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint
from datasets import load_dataset


@dataclass
class ModelArguments:
    model_name: str = field(default="gpt2")


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name)
    raw = load_dataset("wikitext", "wikitext-2-raw-v1")
    with training_args.main_process_first(desc="tokenize"):
        data = raw.map(lambda rows: tokenizer(rows["text"]), batched=True)
    last = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    trainer = Trainer(
        model=model, args=training_args, train_dataset=data["train"],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    result = trainer.train(resume_from_checkpoint=last)
    trainer.save_model()
    trainer.save_metrics("train", result.metrics)
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(training_args.output_dir)


if __name__ == "__main__":
    main()
