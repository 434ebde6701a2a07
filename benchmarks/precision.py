"""How far is LRP in float32 from LRP in float64, of the same weights and images?

Prints, for each method that reads relevance, the rank correlation (Spearman) of the two maps in
patches: the lowest, the median and the highest over images.

    python benchmarks/precision.py                              # the bundled ViT, 8 blocks
    python benchmarks/precision.py --model timm:vit_small_patch16_224 --images 8
"""

from __future__ import annotations

import argparse

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
    options = parser.parse_args()
    torch.manual_seed(0)
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
