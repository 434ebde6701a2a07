"""The options of an evaluation (`Perturb`) and of ROAR (`Retrain`), each declared once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from faithscope.request.option import Option

Names = tuple[str, ...]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
K = Annotated[int, Field(ge=2)] | Literal["auto"]

AT_LEAST_0, AT_LEAST_1 = "a whole number of at least 0", "a whole number of at least 1"
TRUE_OR_FALSE = "true or false"
SPECS = "A,B(OPTION=1),…"


class Request(BaseModel):
    """What both ways of probing are asked; plain values only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    kind: str
    model: Annotated[
        str,
        Option(
            "timm:…, hf:…, torchvision:…, bundled:…, file:… or your own FILE.py:NAME; "
            "LABEL=NAME labels it. See `list models`.",
            "the name of a model",
            metavar="NAME",
            aliases=("models",),
            axis=True,
        ),
    ]
    data: Annotated[
        str,
        Option(
            "A folder, a file, 'photos/*.jpg', bundled:cifar10, cifar10:DIR, imagenet:DIR, hf:ID, "
            "array:FILE, texts.csv; see `list data`, `list texts`.",
            "the name of a data set or a path",
            metavar="NAME",
            aliases=("images", "dataset", "datasets"),
            axis=True,
        ),
    ]
    limit: Annotated[
        Positive | None,
        Option(
            "Use N samples, spread evenly over the data.",
            AT_LEAST_1,
            metavar="N",
            role="running",
        ),
    ] = None
    device: Annotated[
        str,
        Option(
            "auto, cpu, cuda, cuda:1, mps, …",
            "the name of a device",
            metavar="NAME",
            role="running",
        ),
    ] = "auto"
    on: Annotated[
        Literal["local", "ray"],
        Option(
            "Where tasks are run: in this process, or by Ray on all GPUs of a machine or cluster.",
            noun="place to run",
            role="running",
        ),
    ] = "local"
    address: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        Option(
            "With --on ray: a running cluster. [default: $RAY_ADDRESS, else Ray on this machine]",
            "the address of a Ray cluster",
            metavar="HOST:PORT|auto",
            role="running",
            by_hand=True,
        ),
    ] = None
    workers: Annotated[
        Positive | None,
        Option(
            "With --on ray: how many. [default: as many as there are GPUs, or CPUs, for]",
            AT_LEAST_1,
            metavar="N",
            role="running",
        ),
    ] = None
    gpus_per_worker: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)] | None,
        Option(
            "With --on ray: 0.25 lets four workers share a GPU. [default: 1, or 0 on CPUs]",
            "a number of at least 0",
            metavar="X",
            role="running",
        ),
    ] = None
    cpus_per_worker: Annotated[
        Positive | None,
        Option(
            "With --on ray: CPUs, and threads where a worker has no GPU. [default: 1]",
            AT_LEAST_1,
            metavar="N",
            role="running",
        ),
    ] = None
    out: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        Option(
            "Keep the run in a folder or at s3://…; run the same command to resume it.",
            "a path",
            metavar="DIR",
            role="running",
            is_path=True,
            by_hand=True,
        ),
    ] = None
    strict: Annotated[
        bool,
        Option(
            "Stop with an error where something would be left out: methods that the model does not "
            "allow, images that cannot be read, failures, undefined scores.",
            TRUE_OR_FALSE,
            role="running",
        ),
    ] = False
    trust_remote_code: Annotated[
        bool,
        Option(
            "Run the Python files that come with a model of Hugging Face, if you trust its author.",
            TRUE_OR_FALSE,
            role="running",
            by_hand=True,
        ),
    ] = False


class Perturb(Request):
    """Perturb the input: how far does the prediction fall without what a map points to?"""

    kind: Literal["perturb"] = "perturb"

    methods: Annotated[
        Names | None,
        Option(
            "'all' are the papers' methods, 'registered' all of them, FILE.py:NAME your own; see "
            "`list methods`. [default: all, or none if maps are given]",
            "names of methods",
            metavar=SPECS,
            also=("method",),
            differs="freely",
        ),
    ] = None
    metrics: Annotated[
        Names,
        Option(
            "'all' are the papers' metrics, 'registered' all of them; see `list metrics`.",
            "names of metrics",
            metavar=SPECS,
            differs="freely",
        ),
    ] = ("all",)
    target: Annotated[
        str | Whole,
        Option(
            "The class whose probability is watched, by number or name.",
            "class numbers, whole and from 0 upwards",
            "target",
            metavar="predicted|label|CLASS",
            meanings={
                "predicted": "The watched class is the one the model predicts for the intact "
                "{sample}.",
                "label": "The watched class is the true one.",
                "": "The watched class was given.",
            },
        ),
    ] = "predicted"
    output: Annotated[
        Literal["auto", "softmax", "sigmoid"],
        Option(
            "How logits become probabilities; auto is as the model says.",
            noun="output",
            meanings={
                "softmax": "A probability is the softmax over all logits: one class excludes the "
                "others.",
                "sigmoid": "A probability is the sigmoid of the class's own logit, as of models "
                "with several labels each, or with one logit.",
            },
        ),
    ] = "auto"
    k: Annotated[
        K | Annotated[tuple[K, ...], Field(min_length=1)],
        Option(
            "SaCo's number of groups; several share maps and most passes.",
            "a whole number of at least 2, or 'auto'",
            metavar="N|auto",
            meanings={
                "auto": "SaCo's number of groups is chosen per map from 5, 10 and 20.",
                "": "SaCo compares this many groups of units.",
            },
        ),
    ] = 10
    fill: Annotated[
        str,
        Option(
            "What replaces removed units; auto is mean for images, mask for texts; see "
            "`list fills`.",
            "the name of a fill",
            "fill",
            metavar="NAME",
            aliases=("fills",),
            axis=True,
            choices="fill",
            meanings={
                "drop": "Removed units are not replaced: {summary}.",
                "": "Removed units are replaced: {summary}.",
            },
        ),
    ] = "auto"
    units: Annotated[
        Literal["auto", "pixels", "patches", "tokens", "words"],
        Option(
            "What is ranked and removed; auto is pixels of images, tokens of texts.",
            noun="units",
            axis=True,
            meanings={
                "pixels": "Single pixels are ranked and removed.",
                "patches": "Whole patches are ranked and removed.",
                "tokens": "Single tokens are ranked and removed; special tokens never are.",
                "words": "Whole words are ranked and removed; a word weighs the sum of its pieces.",
            },
        ),
    ] = "auto"
    side: Annotated[
        Literal["both", "first", "second"],
        Option(
            "Of pairs of texts, the side that is ranked and removed.",
            noun="side",
            axis=True,
            modality="text",
            meanings={
                "both": "Of pairs of texts both are ranked and removed.",
                "first": "Of pairs of texts the first is ranked and removed, the second is read.",
                "second": "Of pairs of texts the second is ranked and removed, the first is read.",
            },
        ),
    ] = "both"
    upsample: Annotated[
        Literal["bilinear", "nearest"],
        Option(
            "How patch maps, and others that are coarse, become pixel maps.",
            noun="upsampling",
            axis=True,
            modality="image",
            meanings={
                "bilinear": "Coarse maps become pixel maps by smooth interpolation.",
                "nearest": "Coarse maps become pixel maps by repeating each value over its cell.",
            },
        ),
    ] = "bilinear"
    ties: Annotated[
        Literal["ascending", "descending"],
        Option(
            "Order of equal salience, by index.",
            noun="tie order",
            axis=True,
            meanings={
                "ascending": "Of units with equal salience the first in reading order ranks "
                "higher.",
                "descending": "Of units with equal salience the last in reading order ranks "
                "higher.",
            },
        ),
    ] = "ascending"
    group: Annotated[
        Literal["sum", "mean"],
        Option(
            "Salience of a SaCo group.",
            noun="group salience",
            meanings={
                "sum": "A SaCo group weighs the sum of its units' salience, as in the paper.",
                "mean": "A SaCo group weighs the mean of its units' salience.",
            },
        ),
    ] = "sum"
    random_draws: Annotated[
        Annotated[int, Field(ge=0, le=1000)],
        Option(
            "Number of random attributions; 0 leaves them out.",
            "a whole number from 0 to 1000",
            metavar="N",
            meanings={"": "Number of random attributions, averaged per {sample}."},
        ),
    ] = 3
    seed: Annotated[
        Whole,
        Option(
            "Seed for all random draws.",
            AT_LEAST_0,
            metavar="N",
            aliases=("seeds",),
            axis=True,
            meanings={"": "Seed for all random draws."},
        ),
    ] = 0
    precision: Annotated[
        Literal["auto", "fp64", "fp32", "tf32", "fp16", "bf16"],
        Option(
            "Floating-point format of the perturbed passes.",
            noun="precision",
            meanings={"": "Floating-point format in which perturbed {sample}s were run."},
        ),
    ] = "auto"
    explain_precision: Annotated[
        Literal["auto", "fp64", "fp32", "tf32", "fp16", "bf16"],
        Option(
            "Floating-point format of explanations; auto is half precision for integrated "
            "gradients on a CUDA GPU, else the model's own.",
            noun="precision of explanations",
            meanings={
                "auto": "Maps are made in the model's own type, relevance (LRP) in float64.",
                "fp64": "Maps are made in float64.",
                "fp32": "Maps are made in float32; relevance (LRP) in float64.",
                "": "Integrated gradients are made in this format, other maps in the model's own "
                "type, relevance (LRP) in float64.",
            },
        ),
    ] = "auto"
    tolerance: Annotated[
        Annotated[float, Field(gt=0, lt=2)] | None,
        Option(
            "Use images in random order, and stop when every mean is known to within X.",
            "a number above 0 and below 2",
            metavar="X",
            meanings={
                "None": "Every {sample} is used.",
                "": "Images come in random order until every mean is known to within this.",
            },
        ),
    ] = None
    batch_size: Annotated[
        Positive | Literal["auto"],
        Option("Inputs per model call.", "'auto' or at least 1", metavar="N|auto", role="plan"),
    ] = "auto"
    compile: Annotated[
        bool,
        Option(
            "Run perturbed images by a program that torch.compile makes of the model; for many "
            "images on a GPU.",
            TRUE_OR_FALSE,
            role="plan",
            modality="image",
        ),
    ] = False
    pictures: Annotated[
        Whole,
        Option(
            "Number of images or texts that the report's gallery shows.",
            "0 or more",
            metavar="N",
            role="running",
        ),
    ] = 1000
    checkpoint: Annotated[
        str | None,
        Option(
            "Weights: a .safetensors file or a torch state dict.",
            "a path",
            metavar="FILE",
            role="running",
            is_path=True,
        ),
    ] = None
    pretrained: Annotated[
        bool, Option("Download the library's pretrained weights.", TRUE_OR_FALSE, role="running")
    ] = True


class Retrain(Request):
    """Mask what a measure points to and train again (ROAR, Recursive ROAR): how much is lost?"""

    kind: Literal["retrain"] = "retrain"

    model: Annotated[
        str,
        Option(
            "The model to train: of texts bilstm or hf:ID, of images vit(dim=192, depth=6).",
            "the name of a model to train",
            metavar="bilstm|hf:ID|vit",
            aliases=("models",),
            axis=True,
        ),
    ] = "bilstm"
    data: Annotated[
        str,
        Option(
            "babi:DIR(task=1), sst:DIR, imdb:DIR, snli:DIR, mimic:DIR(subset=anemia), hf:ID, "
            "bundled:babi1 or your own .csv, .tsv, .jsonl; see `list texts`. Images: cifar10:DIR, "
            "cifar100:DIR, mnist:DIR, array:FILE.npz, a folder, bundled:cifar10.",
            "the name of a data set or a path",
            metavar="NAME",
            aliases=("dataset", "datasets"),
            also=("dataset",),
            axis=True,
            differs="never",
        ),
    ]
    methods: Annotated[
        Names,
        Option(
            "'all' are the paper's measures, 'registered' all of them; see `list measures`, or "
            "`list methods` of images.",
            "names of measures",
            metavar=SPECS,
            name="measures",
            differs="freely",
        ),
    ] = ("all",)
    metrics: Annotated[
        Names,
        Option(
            "What is computed from the curves: racu, area, end; see `list metrics`.",
            "names of metrics",
            metavar=SPECS,
            differs="freely",
        ),
    ] = ("all",)
    seeds: Annotated[
        Positive | Annotated[tuple[Whole, ...], Field(min_length=1)],
        Option(
            "How many seeds, or which: '3' means 0,1,2; '3,' means 3.",
            "a number of seeds, or seeds from 0 upwards",
            metavar="N|A,B,…",
            differs="freely",
            meanings={"": "Each sets the initial weights of a model and the order of its batches."},
        ),
    ] = 5
    levels: Annotated[
        Annotated[tuple[Whole, ...], Field(min_length=1)] | None,
        Option(
            "How much to mask. [default: 10,20,…,90 percent, or 1,…,10]",
            "whole numbers of at least 0",
            metavar="A,B,…",
            differs="never",
            meanings={"": "How much is masked when a new model is trained."},
        ),
    ] = None
    strategy: Annotated[
        Literal["relative", "count"],
        Option(
            "Levels in percent, or in tokens or pixels.",
            noun="strategy",
            differs="never",
            meanings={
                "relative": "Levels are percentages of what a text or image has, rounded down.",
                "count": "Levels are numbers of tokens, pixels or patches.",
            },
        ),
    ] = "relative"
    procedures: Annotated[
        Annotated[tuple[Literal["roar", "recursive"], ...], Field(min_length=1)],
        Option(
            "ROAR, Recursive ROAR or both.",
            noun="procedure",
            metavar="roar,recursive",
            differs="freely",
            meanings={
                "": "ROAR ranks once, by the model of the unmasked data; Recursive ROAR ranks "
                "again at each level, by the model trained there."
            },
        ),
    ] = ("roar", "recursive")
    epochs: Annotated[
        Positive | None,
        Option("Epochs per training. [default: the paper's]", AT_LEAST_1, metavar="N"),
    ] = None
    batch_size: Annotated[
        Positive | None,
        Option(
            "Texts or images per training step. [default: the paper's]", AT_LEAST_1, metavar="N"
        ),
    ] = None
    learning_rate: Annotated[
        Annotated[float, Field(ge=1e-12, allow_inf_nan=False)] | None,
        Option("Learning rate of Adam. [default: the paper's]", "a number above 0", metavar="X"),
    ] = None
    fill: Annotated[
        str | None,
        Option(
            "Of images, what replaces masked units; see `list fills`. [default: mean]",
            "the name of a fill",
            "fill",
            metavar="NAME",
            axis=True,
            choices="fill",
            modality="image",
            meanings={"": "Masked units are replaced: {summary}."},
        ),
    ] = None
    units: Annotated[
        Literal["pixels", "patches"] | None,
        Option(
            "Of images, what is ranked and masked. [default: pixels]",
            noun="units",
            axis=True,
            modality="image",
            meanings={
                "pixels": "Single pixels are ranked and masked.",
                "patches": "Whole patches are ranked and masked.",
            },
        ),
    ] = None
    specials: Annotated[
        bool,
        Option(
            "Count special tokens in sparsity.",
            TRUE_OR_FALSE,
            differs="freely",
            modality="text",
            meanings={
                "True": "Sparsity counts special tokens, too, as the paper's program does.",
                "False": "Sparsity counts the tokens that can be masked.",
            },
        ),
    ] = True
    keep_weights: Annotated[
        bool, Option("Keep the weights of every model.", TRUE_OR_FALSE, role="running")
    ] = False
    keep_every: Annotated[
        Annotated[float, Field(ge=0)],
        Option(
            "Seconds between saved states of a training; 0 saves every epoch.",
            "a number of at least 0",
            metavar="SECONDS",
            role="running",
        ),
    ] = 5.0


KINDS: dict[str, type[Request]] = {"perturb": Perturb, "retrain": Retrain}
"""Requests by the way of probing."""
