"""Train with Hugging Face's Trainer, on batches that come from a `Loader`.

    python examples/train_hf.py vlm.yaml --model tiny --steps 20
    torchrun --nproc-per-node 2 examples/train_hf.py vlm.yaml --model tiny --steps 40

The second goes on from the first one's last checkpoint, on another number of ranks. With
`execution.micro_batch` in the config, set ``--accumulate`` to a rank's micro-batches of a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, Trainer, TrainerCallback, TrainingArguments

from zephon_mm import Batch, Loader
from zephon_mm.config import load_yaml
from zephon_mm.demo.model import tiny_model
from zephon_mm.models import load_tokenizer


class LoaderTrainer(Trainer):  # noqa: D101
    loss_is_scaled_for_ga = True  # the loss below is of a whole step

    def __init__(self, loader: Loader, **kwargs: Any) -> None:
        self.loader = loader
        super().__init__(**kwargs)

    def get_train_dataloader(self) -> Loader:
        return self.loader  # Accelerate has nothing to shard or skip: it knows where it stands

    def get_batch_samples(
        self, batches: Iterator[Batch], count: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], None]:
        """All batches of a step, each with the target tokens of that step over all ranks.

        The Trainer asks models that say ``accepts_loss_kwargs``; Qwen's say no, so it is put in
        here. It is divided by the ranks since DDP takes the mean over them.
        """
        taken = list(islice(batches, count))
        total = torch.tensor(self.loader.reduce_target_tokens(taken) / self.loader.dp_size)
        extra = {"num_items_in_batch": total, "use_cache": False}
        return [{**batch.to(device).model_inputs, **extra} for batch in taken], None


class SaveLoader(TrainerCallback):
    """Writes the loader's state last into each checkpoint, so one that has it is whole."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        # by its step: batches that the Trainer has fetched ahead are not trained yet
        self.loader.save_state(folder / "loader.json", step=state.global_step)


def last_checkpoint(folder: Path) -> Path | None:
    whole = [path.parent for path in folder.glob("checkpoint-*/loader.json")]
    return max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="YAML of the data, as for `zephon-mm digest`")
    parser.add_argument("--model", default="tiny", help="or a Hugging Face id or folder")
    parser.add_argument("--steps", type=int, default=20, help="the step to end at")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("hf_out"))
    parser.add_argument("--lr", type=float, default=1e-4)
    flags = parser.parse_args()
    arguments = TrainingArguments(  # first: it makes the process group
        output_dir=str(flags.output), max_steps=flags.steps, save_steps=flags.save_every,
        gradient_accumulation_steps=flags.accumulate, learning_rate=flags.lr, logging_steps=1,
        lr_scheduler_type="constant", ddp_find_unused_parameters=True,  # ranks without pictures
        ignore_data_skip=True, report_to="none", use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    config, execution = load_yaml(flags.config)
    ranks = {"dp_rank": arguments.process_index, "dp_size": arguments.world_size}
    with Loader(config, execution, **ranks) as loader:
        if flags.model == "tiny":
            model = tiny_model(config.model, load_tokenizer(config.tokenizer), seed=0)
        else:
            model = AutoModelForImageTextToText.from_pretrained(flags.model)
        saved = last_checkpoint(flags.output)
        if saved is not None:
            loader.load_state(saved / "loader.json")
        trainer = LoaderTrainer(loader, model=model, args=arguments, callbacks=[SaveLoader(loader)])
        trainer.train(resume_from_checkpoint=saved and str(saved))


if __name__ == "__main__":
    main()
