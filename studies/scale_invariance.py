"""Section 5.5.1 and its proof: is SaCo the same for a map, a multiple of it, and a shift?

python studies/scale_invariance.py --out runs/scale_invariance

Transformer-MM's maps of the 200 bundled images unchanged, multiplied by three, plus one, and
rescaled to [0, 1]; SaCo by difference and by ratio; the salience of a group as the sum of its units
(the paper's) and as their mean. The proof holds for groups of equal size; 1,024 pixels in 10
groups give two sizes, 102 and 103, which is measured here. Two runs, a few minutes on a CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import faithscope as fs


def main() -> None:
    """Evaluate the four maps with both definitions of group salience."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/scale_invariance"))
    out = parser.parse_args().out
    model = fs.load_model("bundled:cifar10_vit")
    data = fs.load_data("bundled:cifar10", model)
    images = torch.cat([batch.images for batch in data.batches(100)])
    maps = fs.explain(model, images, "transformer_mm")
    assert isinstance(maps, torch.Tensor)
    maps = maps.double()
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    changed = {
        "map": maps,
        "3 map": 3 * maps,
        "map + 1": maps + 1,
        "map, min-max": (maps - low) / (high - low),
    }
    for group in ("sum", "mean"):
        fs.evaluate(
            model,
            images,
            maps=changed,
            metrics=["saco", "saco(weight=ratio)"],
            random_draws=0,
            group=group,
            out=out / group,
        )
    command = f"python studies/scale_invariance.py --out runs/{out.name}"
    (out / "command.txt").write_text(f"{command}\n# on the CPU\n")


if __name__ == "__main__":
    main()
