#!/usr/bin/env bash
# Runs loom's models: every crates/*/tests/loom*.rs, compiled with --cfg loom; then stateright's of what two processes do to
# each other (crates/model), every state unless MODELS=short.
# MODELS=short bounds the number of preemptions, so that CI ends; MODELS=full (the default) raises the bound; MODELS=loom is short, and
# loom's alone, for `make quick`.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${MODELS:-full} in
loom | short) bound=2 ;;
full) bound=3 ;;
*) echo "MODELS is loom, short or full, not '$MODELS'" >&2; exit 2 ;;
esac

packages=()
for crate in crates/*/; do
    compgen -G "${crate}tests/loom*.rs" >/dev/null && packages+=(-p "$(basename "$crate")")
done
if [ ${#packages[@]} = 0 ]; then
    echo "no crate has tests/loom*.rs" >&2
    exit 1
fi

# Optimised, because loom replays a model thousands of times; not LTO, which only costs here.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
target=${CARGO_TARGET_DIR:-target}/models
RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}" LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-$bound}" \
    scripts/cargo test --locked --release --target-dir "$target" "${packages[@]}" --test 'loom*'

[ "${MODELS:-full}" != loom ] || exit 0
MODELS=${MODELS:-full} scripts/cargo test --locked --release --target-dir "$target" -p model --tests -- --test-threads=1
