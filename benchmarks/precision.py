"""What does a coarser number format cost in truth, of the same weights and samples?

Without `--formats`: LRP in float32 against float64, the rank correlation (Spearman) of the maps in
patches, of each method that reads relevance: the lowest, the median and the highest over images.
With it: integrated gradients in these formats against float64, the rank correlation of the maps,
by how much the mean SaCo moves (with the standard error of the move) and the most it moves for a
single sample; the model answers in float64 every time.

    python benchmarks/precision.py                              # the bundled ViT, 8 blocks
    python benchmarks/precision.py --model timm:vit_small_patch16_224 --images 8
    python benchmarks/precision.py --model bundled:sst_text --data bundled:sst --formats fp16 bf16
    python benchmarks/precision.py --device cuda --images 200 --formats fp32 tf32 fp16 bf16
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from scipy.stats import spearmanr

import faithscope as fs

METHODS = ("lrp", "lrp(rules=conserving)", "partial_lrp", "transformer_attribution")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bundled:cifar10_vit")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply weights of blocks by it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", help="by default the bundled images, or random ones")
    parser.add_argument("--formats", nargs="+", help="of integrated gradients, instead of LRP")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.formats:
        of_integrated_gradients(options)
    else:
        of_relevance(options)


def of_integrated_gradients(options: argparse.Namespace) -> None:
    """Integrated gradients in several formats against those in float64."""
    model = fs.load_model(options.model, device=options.device)
    data = fs.load_data(options.data or "bundled:cifar10", model, limit=options.images)
    made = {}
    for name in ("fp64", *options.formats):
        started = time.perf_counter()
        made[name] = fs.explain(model, data, "integrated_gradients", explain_precision=name)
        print(f"{name}: {time.perf_counter() - started:.1f} s with the first call", flush=True)
    lists = {name: [one.double().cpu() for one in maps] for name, maps in made.items()}
    result = fs.evaluate(
        model, data, maps=lists, metrics="saco", random_draws=0, precision="fp64", pictures=0
    )
    frame = result.scores.select(["sample", "method", "value"]).to_pandas()
    saco = frame.pivot(index="sample", columns="method", values="value")
    print(f"{options.model}, {len(saco)} samples, {options.device}, torch {torch.__version__}")
    print("against fp64: Spearman lowest, median; mean SaCo moves by (±SE), one sample's by most")
    for name in options.formats:
        pairs = zip(lists[name], lists["fp64"], strict=True)
        same = [spearmanr(one.flatten(), other.flatten()).statistic for one, other in pairs]
        move = saco[name] - saco["fp64"]
        print(
            f"{name:6} {np.min(same):.4f} {np.median(same):.4f}  {move.mean():+.5f} "
            f"(±{move.std() / len(move) ** 0.5:.5f})  {move.abs().max():.3f}",
            flush=True,
        )


def of_relevance(options: argparse.Namespace) -> None:
    """LRP in float32 against LRP in float64."""
    bundled = options.model.startswith("bundled:")
    model = fs.load_model(options.model, pretrained=bundled, device=options.device)
    if bundled:
        data = fs.load_data("bundled:cifar10", model, limit=options.images)
        images = next(data.batches(options.images)).images
    else:
        images = torch.randn(options.images, 3, *(model.input_size or (224, 224)))
    vit = model.require_vit("This script")
    with torch.no_grad():
        for parameter in torch.nn.ModuleList(vit.blocks).parameters():
            if parameter.ndim == 2:
                parameter.mul_(options.scale)
    print(f"{options.model}, {len(vit.blocks)} blocks, weights ×{options.scale}")
    print(f"{'Spearman, fp32 against fp64':28} {'lowest':>8} {'median':>8} {'highest':>8}")
    for name in METHODS:
        exact = fs.method(name)
        maps = fs.explain(
            model, images, [exact, exact.with_options(precision="fp32")], units="patches"
        )
        one, other = (values.flatten(1).cpu().numpy() for values in maps.values())
        found = [spearmanr(a, b).statistic for a, b in zip(one, other, strict=True)]
        print(f"{name:28} {min(found):8.3f} {np.median(found):8.3f} {max(found):8.3f}", flush=True)


if __name__ == "__main__":
    main()
