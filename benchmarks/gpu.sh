#!/usr/bin/env bash
# Every measurement that docs/performance.md asks of a GPU, in parts of at most ten minutes:
#     bash benchmarks/gpu.sh speed|whole|texts|train|truth [DATA]
# DATA holds sst/ and a folder minilm/ (for `texts`), cifar10_test.npz with images and labels (`truth`).
set -uo pipefail
cd "$(dirname "$0")/.."
data=${2:-data}
vits="vit_base_patch16_224 vit_large_patch16_224"

at_most() { # SECONDS COMMAND…: says what it runs and how long that took
  local seconds=$1 began=$SECONDS
  shift
  echo "\$ $*"
  timeout "$seconds" "$@" || echo "exit $?"
  echo "($((SECONDS - began)) s)"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
case ${1:-} in
  speed) # evaluate beside bare forwards
    at_most 200 python3 benchmarks/overhead.py --device cuda --images 256 --model $vits --pictures 1000 0
    at_most 120 python3 benchmarks/overhead.py --device cuda --images 256 --rounds 1 --model vit_base_patch16_224 --fill noise blur inpaint
    at_most 60 python3 benchmarks/overhead.py --device cuda --images 128 --rounds 1 --model vit_base_patch16_224 --fill inpaint --patch-maps
    at_most 120 python3 benchmarks/overhead.py --device cuda --images 256 --model vit_base_patch16_224 --compile
    at_most 80 python3 benchmarks/overhead.py --device cuda --images 256 --model vit_tiny_patch16_224
    at_most 60 python3 benchmarks/drop.py --device cuda --images 128 --model vit_base_patch16_224
    ;;
  whole) # the whole job, its parts, and Quantus
    at_most 150 python3 benchmarks/whole.py --device cuda --images 128 --model vit_base_patch16_224
    at_most 150 python3 benchmarks/whole.py --device cuda --images 64 --model vit_large_patch16_224
    at_most 100 python3 benchmarks/whole.py --device cuda --images 64 --model vit_base_patch16_224 --quantus
    for model in $vits; do
      at_most 90 python3 benchmarks/explain.py --device cuda --model "$model" --batches 32 128 --images 128 --count --methods lrp,partial_lrp,transformer_attribution
    done
    ;;
  texts)
    at_most 250 python3 benchmarks/overhead.py --device cuda --texts 20000 --maps 3 --rounds 1
    at_most 250 python3 benchmarks/finetune.py --model "hf:$data/minilm" --data "sst:$data/sst" --models 1 8 12
    ;;
  train)
    at_most 200 python3 benchmarks/roar_images.py --models 8 24
    at_most 60 python3 benchmarks/explain.py --device cuda --model vit_base_patch16_224 --batches 32 --alone
    ;;
  truth) # what cheaper explanations cost, on two trained models
    at_most 350 python3 benchmarks/precision.py --device cuda --data "array:$data/cifar10_test.npz" --images 1000 --formats fp32 tf32 fp16 bf16
    at_most 200 python3 benchmarks/precision.py --device cuda --images 200 --model bundled:sst_text --data bundled:sst --formats fp32 tf32 fp16 bf16
    ;;
  *)
    sed -n '2,4s/^# *//p' "$0"
    exit 2
    ;;
esac
