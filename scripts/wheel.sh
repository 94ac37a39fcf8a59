#!/usr/bin/env bash
# `make wheel`: the Python package as build/wheels/shunt-VERSION-cp311-abi3-PLATFORM.whl, which needs no compiler where it is installed, and any
# CPython from 3.11 on.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT"
. scripts/toolchain.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
# The Python environment whose maturin it is.
venv=$PWD/${WHEEL_VENV:-build/venv}

# Sockets between processes of one host go through memory by this library, which the package loads when it has such.
scripts/cargo build -q --release --locked -p preload
trap 'rm -f python/shunt/libshunt.so' EXIT
install -m 644 "$target/release/libshunt.so" python/shunt/libshunt.so
strip --strip-unneeded python/shunt/libshunt.so
rm -rf build/wheels
cd python
PATH=$(toolchain_dir):$PATH CARGO_TARGET_DIR=$target \
    "$venv/bin/maturin" build -q --release --locked -i "$venv/bin/python" -o ../build/wheels
cd ..
ls build/wheels/shunt-*.whl
