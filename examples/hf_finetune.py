"""Hugging Face's Trainer with Muon for the matrices: fine-tune a classifier of program text.

    python examples/hf_finetune.py                       # a minute on two cores, no download
    python examples/hf_finetune.py --model NAME          # from pretrained weights of the hub

The task: from 128 bytes, tell which of four packages of the standard library they come from. The
small model is a Qwen3 built from its configuration: its queries and keys are normalized, so that
`param_groups` finds them scale-invariant. The Trainer gets the class and the groups, and makes the
schedule, the checkpoints and the evaluation itself.

The small model, 300 steps, one seed (AdamW at 1e-3, Muon at 0.01; a difference may be chance):

    adamw: accuracy 48.4 %, loss 1.198
    muon: accuracy 52.0 %, loss 1.174
"""

import argparse
import sysconfig
import tempfile
from pathlib import Path

import torch
import transformers

import spherenorm as sn

PACKAGES = ("asyncio", "email", "multiprocessing", "unittest")
LENGTH = 128


class Snippets(torch.utils.data.Dataset):
    """Windows of bytes with the number of the package that they come from.

    Of the files of a package, in alphabetical order, each fourth one is for the evaluation.
    """

    def __init__(self, train, count, tokenizer=None):
        generator = torch.Generator().manual_seed(int(train))
        self.rows = []
        for label, package in enumerate(PACKAGES):
            folder = Path(sysconfig.get_path("stdlib"), package)
            files = enumerate(sorted(folder.rglob("*.py")))
            files = [file for index, file in files if (index % 4 == 3) != train]
            text = "".join(f.read_text("utf-8") for f in files).encode("ascii", "ignore")
            starts = torch.randint(len(text) - LENGTH, (count,), generator=generator)
            for start in starts.tolist():
                self.rows.append((text[start : start + LENGTH], label))
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        text, label = self.rows[index]
        if self.tokenizer:
            options = {"truncation": True, "padding": "max_length", "max_length": LENGTH}
            return {**self.tokenizer(text.decode(), **options), "labels": label}
        return {"input_ids": list(text), "attention_mask": [1] * LENGTH, "labels": label}


def small_model(width, layers):
    """A Qwen3 that reads bytes, with random weights; ends are never padded."""
    config = transformers.Qwen3Config(
        vocab_size=128,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=LENGTH,
        num_labels=len(PACKAGES),
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.Qwen3ForSequenceClassification(config)


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


class PrintNorms(transformers.TrainerCallback):
    """The norm and the turn of the first queries, as the probe sees them, at the end."""

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **rest):
        self.probe = sn.probe(optimizer, every=max(1, args.max_steps // 10), model=model)

    def on_train_end(self, args, state, control, **rest):
        self.probe.close()
        rows = [m for m in self.probe.measurements if m.weight.endswith("q_proj.weight")]
        print(f"{rows[0].weight}: norm {rows[0].norm:.3f} -> {rows[-1].norm:.3f}")


def run(kind, options):
    torch.manual_seed(0)
    tokenizer = None
    if options.model:
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
        load = transformers.AutoModelForSequenceClassification.from_pretrained
        model = load(options.model, num_labels=len(PACKAGES))
    else:
        model = small_model(32, 1) if options.tiny else small_model(64, 2)
    data = Snippets(True, 8 if options.tiny else 1500, tokenizer)
    held_out = Snippets(False, 8 if options.tiny else 250, tokenizer)

    if kind == "muon":
        batch = transformers.default_data_collator([data[0], data[-1]])
        groups = sn.param_groups(
            model, batch, sn.bind("muon", lr=0.01), rest=sn.bind("adamw", lr=1e-3)
        )
        optimizer = (sn.optim.Muon, {"params": groups})
    else:
        optimizer = (torch.optim.AdamW, {"lr": 1e-3})

    steps = 2 if options.tiny else 300
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=32,
                lr_scheduler_type="linear",
                warmup_steps=steps // 10,
                max_grad_norm=1.0,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=not torch.cuda.is_available(),
                logging_strategy="no",
            ),
            train_dataset=data,
            eval_dataset=held_out,
            compute_metrics=accuracy,
            optimizer_cls_and_kwargs=optimizer,
            callbacks=[PrintNorms()],
        )
        trainer.train()
        result = trainer.evaluate()
    print(f"{kind}: accuracy {100 * result['eval_accuracy']:.1f} %, loss {result['eval_loss']:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a name of the hub, or a folder")
    parser.add_argument("--tiny", action="store_true", help="a few steps, as in the tests")
    for kind in ("adamw", "muon"):
        run(kind, parser.parse_args())
