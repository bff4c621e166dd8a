#!/usr/bin/env bash
# The checks that need a GPU, for a bare machine: Python 3.12 with jax (CUDA), flax, optax, chex,
# orbax-checkpoint, numpy, scipy, matplotlib, scikit-learn, torch and pytest, and no network.
#
# Usage:  gpu.sh --fetch    here, with a network: fills .whl/ with what else is needed
#         gpu.sh NAME       there, one set a call, each under 8 minutes: tests, shadow_models,
#                           dpsgd_step, dpsgd_libraries, microbatches, di_audit or seq2seq; JSON
#                           goes to $OUT (default experiments/results); seq2seq reads Multi30K in
#                           JAXPRIV_DATA
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
WHEELS=(dp-accounting==0.6.0 dm-tree jaxtyping wadler-lindig beartype rich jax-privacy==2.0.0
        opacus==1.6.0 opt-einsum immutabledict mpmath absl-py attrs wrapt equinox
        humanize==4.17.0)

if [ "${1:-}" = --fetch ]; then
    platforms=()
    for name in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux1; do
        platforms+=(--platform "${name}_x86_64")
    done
    rm -rf .whl
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.12 --implementation cp "${platforms[@]}" -d .whl "${WHEELS[@]}"
    du -sh .whl
    exit
fi

case "${1:-}" in
    tests | shadow_models | dpsgd_step | dpsgd_libraries | microbatches | di_audit | seq2seq) ;;
    *) echo "usage: gpu.sh --fetch | tests | shadow_models | dpsgd_step | dpsgd_libraries | microbatches | di_audit | seq2seq" >&2; exit 2 ;;
esac
SITE=$(mktemp -d)
trap 'rm -rf "$SITE"' EXIT
"$PYTHON" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile \
    --target "$SITE" .whl/*.whl
export PYTHONPATH="$PWD:$SITE" PYTHONUNBUFFERED=1
OUT=${OUT:-experiments/results}
PRESET=${PRESET:-paper}
mkdir -p "$OUT"
if [ "$1" = tests ]; then
    timeout 460 "$PYTHON" -m pytest -p no:cacheprovider -m gpu --junitxml "$OUT/gpu-tests.xml" tests/test_gpu.py
else
    timeout 460 "$PYTHON" -m experiments run "benchmarks/$1" --preset "$PRESET" --out "$OUT"
fi
