"""The Hugging Face Trainer: AUSAM for a tiny BERT on generated sentences; nothing is downloaded.

python examples/with_transformers.py runs/bert

Run it again with the same folder and more epochs, and it continues from the last checkpoint.
"""

import argparse
import os
import random

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from ausam import SAM, AUSampling
from ausam.integrations.transformers import SharpnessAwareTrainer

GOOD, BAD = ["lovely", "bright", "great"], ["dull", "awful", "sad"]
PLAIN = ["the", "film", "was", "a", "long", "story", "of", "two", "towns"]
WORD = {word: i for i, word in enumerate(["[PAD]", "[CLS]", *GOOD, *BAD, *PLAIN])}


def sentences(n, seed):
    """Sentences of eight words; their label is whether there are more good words than bad ones."""
    rng, found = random.Random(seed), []
    while len(found) < n:
        words = rng.choices([*GOOD, *BAD, *PLAIN], k=8)
        balance = sum((w in GOOD) - (w in BAD) for w in words)
        if balance:
            found.append({"input_ids": [WORD[w] for w in ("[CLS]", *words)], "labels": int(balance > 0)})
    return found


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)

    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(WORD), pad_token_id=0, **size)
    trainer = SharpnessAwareTrainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            args.folder,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            save_strategy="epoch",
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
            disable_tqdm=True,
        ),
        train_dataset=sentences(512, seed=1),
        eval_dataset=sentences(500, seed=2),
        compute_metrics=accuracy,
        method=SAM(rho=0.05),  # the two new lines
        policy=AUSampling(alpha=0.5, ramp=2),
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.folder))
    used = int(trainer.batches.selective.scores.count.sum())
    print(f"steps {trainer.state.global_step}, samples {used}, accuracy {trainer.evaluate()['eval_accuracy']:.4f}")


if __name__ == "__main__":
    main()
