"""Train with Lightning's Trainer: the loader is its dataloader, and lies in its checkpoints.

    python examples/train_lightning.py vlm.yaml --model tiny --steps 20
    torchrun --nproc-per-node 2 examples/train_lightning.py vlm.yaml --model tiny --steps 40

The second goes on from the first one's last checkpoint, on another number of ranks.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.strategies import DDPStrategy
from transformers import AutoModelForImageTextToText

from zephon_mm import Batch, Loader
from zephon_mm.config import load_yaml
from zephon_mm.demo.model import tiny_model
from zephon_mm.models import load_tokenizer


class VisionLanguageModule(L.LightningModule):
    """A transformers model on the batches of a `Loader`."""

    def __init__(self, model: torch.nn.Module, loader: Loader, lr: float) -> None:
        super().__init__()
        self.model, self.loader, self.lr = model, loader, lr

    def train_dataloader(self) -> Loader:
        return self.loader

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, _: int) -> Batch:
        return batch.to(device)

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        total = self.loader.reduce_target_tokens(batch)  # over all ranks, so they don't matter
        mean = torch.tensor(total / self.loader.dp_size)  # DDP takes the mean over the ranks
        inputs = {**batch.model_inputs, "num_items_in_batch": mean}
        loss = self.model(**inputs, use_cache=False).loss
        self.log("loss", loss, prog_bar=True, sync_dist=True, batch_size=1)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.lr)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the state of all ranks in the place from which Lightning restores the loader.

        What Lightning has put there is of rank 0 alone, and of a batch too far: without a length
        it fetches one batch ahead.
        """
        state = self.loader.gather_state(step=self.global_step)
        checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = [state]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="YAML of the data, as for `zephon-mm digest`")
    parser.add_argument("--model", default="tiny", help="or a Hugging Face id or folder")
    parser.add_argument("--steps", type=int, default=20, help="the step to end at")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("lightning_out"))
    parser.add_argument("--lr", type=float, default=1e-4)
    flags = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    config, execution = load_yaml(flags.config)
    with Loader(config, execution, dp_rank=rank, dp_size=world) as loader:
        if flags.model == "tiny":
            model = tiny_model(config.model, load_tokenizer(config.tokenizer), seed=0)
        else:
            model = AutoModelForImageTextToText.from_pretrained(flags.model)
        saving = ModelCheckpoint(flags.output, save_last=True, every_n_train_steps=flags.save_every)
        trainer = L.Trainer(
            max_steps=flags.steps,
            devices=world,
            strategy=DDPStrategy(find_unused_parameters=True) if world > 1 else "auto",
            callbacks=[saving, RichProgressBar()],
            logger=False,
            log_every_n_steps=1,
        )
        last = flags.output / "last.ckpt"
        module = VisionLanguageModule(model, loader, flags.lr)
        trainer.fit(module, ckpt_path=last if last.exists() else None)
        if trainer.is_global_zero:
            print(f"step {trainer.global_step}  loss {trainer.logged_metrics['loss']:.4f}")


if __name__ == "__main__":
    main()
