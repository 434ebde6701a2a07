r"""How much slower is `evaluate` than bare forwards of the same number and batch size?

Maps are given, so that only ranking, perturbing, running and scoring are timed. Both sides are
measured in turn, in one process, on the same machine; the ratio is of their medians. Texts have the
lengths of SST's test sentences, and bare forwards of texts run those of one length together. With
`--compile`, `evaluate` runs the compiled model, and compiled bare forwards stand beside the others.

    python benchmarks/overhead.py                                  # vit_tiny, CPU, 1 thread
    python benchmarks/overhead.py --model bundled:cifar10_vit --images 8 --cpu-time
    python benchmarks/overhead.py --device cuda --images 256 --model vit_base_patch16_224
    python benchmarks/overhead.py --device cuda --images 256 --model vit_base_patch16_224 --compile
    python benchmarks/overhead.py --texts 8                        # of MiniLM's size, CPU, 1 thread
    python benchmarks/overhead.py --texts 20000 --device cuda --maps 3

Several models, fills and numbers of pictures make a table, a line for each:

    … --model vit_base_patch16_224 vit_large_patch16_224 --fill mean noise blur inpaint \
        --pictures 1000 0
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import timm
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import BertProcessing
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import faithscope as fs
from faithscope.metrics import resolve_metrics
from faithscope.models import Model
from faithscope.probes.perturb.plan import plan_map

SST = (2, 7, 8, 10, 11, 13, 14, 15, 17, 18, 19, 20, 21, 23, 24, 25, 27, 29, 32, 35, 56)
"""Words of SST's test sentences, at every 5 % of them."""
VARIED = ("model", "fill", "pictures")
"""Options of which several values make a line each."""


def main() -> None:
    """Measure every model, fill and number of pictures in turn, and print a table of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["vit_tiny_patch16_224"])
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--texts", type=int, help="so many texts instead of images")
    parser.add_argument("--maps", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="1 on a CPU, the library's choice on a GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--fill", nargs="+", default=["auto"])
    parser.add_argument("--pictures", nargs="+", type=int, default=[1000], help="images kept small")
    parser.add_argument("--patch-maps", action="store_true", help="maps that hide whole regions")
    parser.add_argument("--bare-batch", type=int, help="of bare forwards; by default the same")
    parser.add_argument("--compile", action="store_true", help="evaluate(…, compile=True)")
    parser.add_argument("--cpu-time", action="store_true", help="of a machine that others use, too")
    options = parser.parse_args()
    if options.threads or options.device == "cpu":
        torch.set_num_threads(options.threads or 1)
    print(
        f"faithscope {fs.__version__}, Python {platform.python_version()}, timm {timm.__version__}"
    )
    lines = [
        measured(argparse.Namespace(**{**vars(options), **dict(zip(VARIED, case, strict=True))}))
        for case in itertools.product(*(getattr(options, name) for name in VARIED))
    ]
    print("\n| model | fill | pictures | bare forwards/s | evaluate, passes/s | rate |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        print(
            f"| {line['model']} | {line['fill']} | {line['pictures']} | "
            f"{line['bare_per_second']:,.1f} | {line['evaluate_per_second']:,.1f} | "
            f"{1 / line['ratio']:.1%} |"
        )


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Measure one of them; print a line per round, the ratio, and one line of JSON."""
    model, data, maps = texts(options) if options.texts else images(options)

    def evaluate() -> fs.Result:
        return fs.evaluate(
            model,
            data,
            maps=maps,
            random_draws=0,
            fill=options.fill,
            pictures=options.pictures,
            precision=options.precision,
            compile=options.compile,
        )

    began = time.perf_counter()
    manifest = evaluate().manifest
    first = time.perf_counter() - began
    request = manifest.plan.request
    passes, batch, precision = (
        manifest.cost.response_passes,
        request.batch_size,
        request.precision,
    )
    given = calls(model, data, options.maps, passes, options.bare_batch or batch)
    sides: dict[str, Callable[[], object]] = {"bare": bare_forwards(model, given, precision)}
    if options.compile:
        full = given[:1] * -(-passes // (options.bare_batch or batch))
        sides["bare_compiled"] = bare_forwards(model, full, precision, compiled=True)
    for call in sides.values():
        call()
    sides["evaluate"] = evaluate
    print(
        f"{model.name}, {passes} passes, batch {batch}, {precision}; first evaluate {first:.1f} s"
    )
    clock = time.process_time if options.cpu_time else time.perf_counter
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.rounds):
        for name, call in sides.items():
            took[name].append(seconds(call, clock))
        rates = (f"{name} {passes / held[-1]:,.1f}/s" for name, held in took.items())
        print(f"round {number + 1}: {', '.join(rates)}", flush=True)
    middle = {name: statistics.median(held) for name, held in took.items()}
    slow = middle["evaluate"]
    for name in [*sides][:-1]:
        share = f"rate {middle[name] / slow:.1%} of {name} forwards"
        print(f"evaluate / {name}: {slow / middle[name]:.3f} ({share})")
    device = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    line = {
        **vars(options),
        "model": model.name,
        "passes": passes,
        "batch": batch,
        "precision": precision,
        "ratio": round(slow / middle["bare"], 4),
        **{f"{name}_per_second": round(passes / held, 1) for name, held in middle.items()},
        "machine": device,
        "torch": torch.__version__,
    }
    print(json.dumps(line), flush=True)
    return line


def random_model(name: str, device: str) -> Model:
    """A model of timm's whose weights are drawn on the device, where that takes no time."""
    with torch.device(device):
        module = timm.create_model(name).eval()
    return fs.wrap(module, mean=(0.5,) * 3, std=(0.5,) * 3, name=name)


def images(options: argparse.Namespace) -> tuple[Model, Tensor, dict[str, Tensor]]:
    """A bundled model or one of timm's with random weights, random images and maps of them."""
    generator = torch.Generator().manual_seed(0)
    if ":" in options.model:
        model = fs.load_model(options.model, device=options.device)
    else:
        model = random_model(options.model, options.device)
    size = model.input_size or (224, 224)
    made = torch.randn(options.images, 3, *size, generator=generator)
    shape = model.require_grid(made, "--patch-maps") if options.patch_maps else size
    maps = (torch.rand(options.images, *shape, generator=generator) for _ in range(options.maps))
    return model, made, {f"map{index}": one for index, one in enumerate(maps)}


def texts(options: argparse.Namespace) -> tuple[Model, list[str], dict[str, list[Tensor]]]:
    """A BERT of MiniLM's size, texts of random words and a few random maps of them."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(30_517))]
    words = Tokenizer(WordLevel({name: at for at, name in enumerate(names)}, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    words.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
    }
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    config = BertConfig(
        vocab_size=len(names),
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    torch.manual_seed(0)
    module = BertForSequenceClassification(config).eval().to(options.device)
    rng = np.random.default_rng(0)
    lengths = np.interp(rng.random(options.texts), np.linspace(0, 1, 21), SST).astype(int)
    made = [" ".join(f"w{word}" for word in rng.integers(0, 30_517, n)) for n in lengths]
    maps = {
        f"map{index}": [torch.from_numpy(rng.random(n)) for n in lengths]
        for index in range(options.maps)
    }
    return fs.wrap(module, tokenizer=tokenizer, name="MiniLM's size"), made, maps


def calls(model: Model, data: Any, maps: int, passes: int, batch: int) -> list[dict[str, Tensor]]:
    """The inputs of as many passes in batches as full as can be: those of one length together."""
    if isinstance(data, Tensor):
        inputs = data.repeat(batch // len(data) + 1, 1, 1, 1)[:batch].contiguous()
        return [{"": inputs[:size]} for size in batches(passes, batch)]
    counts = Counter[int]()
    for one in fs.load_data(data, model).encoded:
        plan = plan_map(resolve_metrics("all"), len(one.words), k=10, auto=10)
        counts[len(one.ids)] += plan.shared + maps * len(plan.own)
    assert counts.total() == passes
    generator = torch.Generator().manual_seed(0)
    made = []
    for length, count in counts.items():
        ids = torch.randint(5, 30_000, (batch, length), generator=generator)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        given["token_type_ids"] = torch.zeros_like(ids)
        sizes = batches(count, batch)
        made += [{name: part[:size] for name, part in given.items()} for size in sizes]
    return made


def batches(count: int, most: int) -> list[int]:
    """So many rows in batches of at most `most`."""
    return [most] * (count // most) + ([count % most] if count % most else [])


def bare_forwards(
    model: Model, given: list[dict[str, Tensor]], precision: str, *, compiled: bool = False
) -> Callable[[], None]:
    """The same number of forwards, same batch size and precision, nothing else."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}.get(precision)
    runner = model.module if dtype is None else copy.deepcopy(model.module).to(dtype)
    runner = torch.compile(runner, dynamic=False) if compiled else runner
    device = model.device

    def placed(part: Tensor) -> Tensor:
        return part.to(device, dtype) if part.is_floating_point() and dtype else part.to(device)

    there = [{name: placed(part) for name, part in one.items()} for one in given]

    def run() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        with torch.inference_mode():
            for one in there:
                runner(one[""]) if "" in one else runner(**one)
        if device.type == "cuda":
            torch.cuda.synchronize()
        torch.set_float32_matmul_precision(before)

    return run


def seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """What one call takes by a clock."""
    started = clock()
    call()
    return clock() - started


if __name__ == "__main__":
    main()
