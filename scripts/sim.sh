#!/usr/bin/env bash
# The library in a simulated world (crates/sim).
#
#   scripts/sim.sh [OPTIONS]   builds both with --cfg sim, and runs seeds; --help lists the options
#   scripts/sim.sh --hosts     the two processes are on different hosts
#   scripts/sim.sh --spaces    they are in different network namespaces
#   scripts/sim.sh rules       switches off, one after the other, the rules that the simulator is known to find
#                              missing (by SIM_SEEDS seeds, 100000: five minutes at most), and fails if it does not
#   scripts/sim.sh mends [NAME...]  the same for mends of tests/mends.py, each in a build of its own
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = mends ]; then
    shift
    exec python3 tests/taken_out.py "$@"
fi

target=${CARGO_TARGET_DIR:-target}/sim
cargo=${CARGO:-scripts/cargo}

# Of sockets/src/path/rule.rs. For the others a run is too short, or needs what is not simulated.
found=(AcceptedStands AskToo CancelledIsVoid CountedKicks CrossedIsVoid DemoteBeforeFin KicksFirst KicksTaken LookAfterEnd
    NothingUnread RestOfTheDead StandsBeforeUse SwitchBeforeKick WaitForReader WakeBeforeAnnounce)

RUSTFLAGS="--cfg sim ${RUSTFLAGS:-}" CARGO_TARGET_DIR=$target "$cargo" build -q --profile fast --locked -p preload -p sim
sim=$target/fast/sim

if [ "${1:-}" != rules ]; then
    exec "$sim" "$@"
fi
bad=0
for rule in "${found[@]}"; do
    said=$("$sim" --jobs 1 --seeds "1-${SIM_SEEDS:-100000}" --off "$rule") || true
    if seed=$(grep -m1 '^seed' <<<"$said"); then
        echo "$rule: $seed"
    else
        echo "$rule is switched off, and no seed fails"
        bad=1
    fi
done
exit $bad
