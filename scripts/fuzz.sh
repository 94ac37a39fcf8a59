#!/usr/bin/env bash
# Builds the fuzzers with the stable compiler and runs them: scripts/fuzz.sh SECONDS [TARGET...]
# Why not `cargo fuzz`: see fuzz/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?usage: scripts/fuzz.sh SECONDS [TARGET...]}
shift
mapfile -t all < <(awk '/^\[\[bin\]\]/ { bin = 1 } bin && /^name/ { gsub(/"/, "", $3); print $3; bin = 0 }' fuzz/Cargo.toml)
targets=("$@")
[ ${#targets[@]} != 0 ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
    case " ${all[*]} " in *" $target "*) ;; *) echo "scripts/fuzz.sh: no such target: $target (${all[*]})" >&2; exit 2 ;; esac
done

host=$(scripts/cargo -vV | sed -n 's/^host: //p')
# Other flags give other artifacts: a folder of their own keeps the workspace's builds warm.
build=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# With --target, the flags apply to the targets and not to build scripts.
RUSTFLAGS="--cfg fuzzing $(echo $coverage)" CARGO_TARGET_DIR=$build \
    scripts/cargo build --locked --release --manifest-path fuzz/Cargo.toml --target "$host"

fuzz() { # TARGET
    local target=$1 log=$build/$1.log runs
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target" "fuzz/regressions/$target"
    # An input that takes three minutes is a finding. Not less: a virtual machine may stand still for one.
    if ! "$build/$host/release/$target" -max_total_time="$seconds" -timeout=180 -rss_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="fuzz/artifacts/$target/" "fuzz/corpus/$target" "fuzz/regressions/$target" >"$log" 2>&1; then
        tail -n 40 "$log"
        echo "fuzz $target: finding; the input is in fuzz/artifacts/$target" >&2
        return 1
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz $target: $runs runs in $seconds s, no finding"
    [ "${runs:-0}" -gt 0 ] || { tail -n 20 "$log"; echo "fuzz $target: nothing ran" >&2; return 1; }
}

# Each is one thread: as many at a time as there are processors. After a finding the others go on.
running=0 status=0
for target in "${targets[@]}"; do
    if [ $running = "$(nproc)" ]; then
        wait -n || status=1
        running=$((running - 1))
    fi
    fuzz "$target" &
    running=$((running + 1))
done
while [ $running != 0 ]; do
    wait -n || status=1
    running=$((running - 1))
done
exit $status
