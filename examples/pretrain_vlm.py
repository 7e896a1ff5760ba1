"""Pre-train a vision-language model on packed batches, with DDP, checkpoints and resume.

    torchrun --nproc-per-node 2 examples/pretrain_vlm.py vlm.yaml --model tiny --steps 20
    torchrun --nproc-per-node 3 examples/pretrain_vlm.py vlm.yaml --model tiny --steps 40

The second goes on from the first one's checkpoint, on another number of ranks, with the same
batches. ``--model`` is ``tiny`` or a Hugging Face id or folder.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForImageTextToText

from zephon_mm import Batch, Loader
from zephon_mm.config import load_yaml
from zephon_mm.demo.model import tiny_model
from zephon_mm.models import load_tokenizer


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="YAML of the data, as for `zephon-mm digest`")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=20, help="the step to end at")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--lr", type=float, default=1e-4)
    return parser.parse_args()


def build_model(name: str, loader: Loader) -> torch.nn.Module:
    if name == "tiny":
        tokenizer = load_tokenizer(loader.config.tokenizer)
        return tiny_model(loader.config.model, tokenizer, seed=0)
    return AutoModelForImageTextToText.from_pretrained(name).train()


def backward(model: torch.nn.Module, loader: Loader, batch: Batch) -> float:
    """Gradients of the mean loss over all ranks' target tokens; returns this rank's share."""
    total = loader.reduce_target_tokens(batch)  # over all ranks, so G doesn't change the loss
    inputs = {**batch.model_inputs, "num_items_in_batch": torch.tensor(total)}
    loss = model(**inputs, use_cache=False).loss
    (loss * loader.dp_size).backward()  # DDP takes the mean over ranks, the sum is wanted
    return float(loss.detach())


def save(path: Path, loader: Loader, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
    """Weights, optimiser and the loader states of all ranks, in one file."""
    state = loader.gather_state()
    if loader.dp_rank == 0:
        data = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**data, "loader": json.dumps(state)}, f"{path}.part")
        os.replace(f"{path}.part", path)
    dist.barrier()


def main() -> None:
    args = parse()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    config, execution = load_yaml(args.config)
    loader = Loader(config, execution, dp_rank=dist.get_rank(), dp_size=dist.get_world_size())
    plain = build_model(args.model, loader).to(device)
    model = DistributedDataParallel(plain, find_unused_parameters=True)  # a rank without pictures
    optimizer = torch.optim.AdamW(plain.parameters(), lr=args.lr)
    if args.checkpoint.exists():
        data = torch.load(args.checkpoint, map_location=device, weights_only=True)
        plain.load_state_dict(data["model"])
        optimizer.load_state_dict(data["optimizer"])
        loader.load_state_dict(json.loads(data["loader"]))
    for batch in loader:
        if batch.step >= args.steps:
            break
        loss = torch.tensor(backward(model, loader, batch.to(device)), device=device)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        if loader.dp_rank == 0:
            print(f"step {batch.step}  loss {loss.item():.4f}", flush=True)
        if (batch.step + 1) % args.save_every == 0 or batch.step + 1 == args.steps:
            save(args.checkpoint, loader, plain, optimizer)
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
