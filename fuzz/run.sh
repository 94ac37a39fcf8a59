#!/bin/sh
# Fuzzes every target in turn: fuzz/run.sh [SECONDS_EACH] [TARGET...]. Findings stay in fuzz/artifacts, new corpus in fuzz/corpus.
#
# No nightly compiler and no cargo-fuzz are needed: libFuzzer comes with the crate libfuzzer-sys (it wants a C++ compiler), and the
# coverage instrumentation is LLVM's own pass, which stable rustc runs when asked with -C passes. Only -Z options (the address
# sanitizer) would need nightly; the targets guard the memory around what they test instead. With cargo-fuzz and nightly,
# `cargo +nightly fuzz run TARGET` works on the same directory.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -gt 0 ] && shift
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4 \
 -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table \
 -C llvm-args=-sanitizer-coverage-trace-compares"
# With --target, build scripts and macros are not instrumented.
RUSTFLAGS="--cfg fuzzing -C codegen-units=1 $coverage" cargo build --release --bins --target "$host"
built=${CARGO_TARGET_DIR:-target}/$host/release
[ $# -gt 0 ] || set -- $(sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | sed 1d)
for target; do
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "== $target, $seconds s"
    "$built/$target" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 \
        -artifact_prefix="artifacts/$target/" "corpus/$target" "seeds/$target" 2>"artifacts/$target/log" || {
        tail -n 40 "artifacts/$target/log"
        exit 1
    }
    grep -E 'number_of_executed_units|DONE' "artifacts/$target/log" | tail -n 2
done
