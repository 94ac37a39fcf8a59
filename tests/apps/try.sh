#!/bin/sh
# Runs every example of the named programs (all without names) plain, without pytest: for a quick look while writing one.
# PRELOAD=/path/libshunt.so runs them under the library.
cd "$(dirname "$0")" || exit 1
OUT=${OUT:-$(pwd)/../../build/apps}
make -s OUT="$OUT" || exit 1
failed=0
for program in ${*:-$(grep -l '^const struct example' ./*.c | sed 's/.*\///; s/\.c$//')}; do
    for name in $("$OUT/$program"); do
        LD_PRELOAD=$PRELOAD timeout -k 1 30 "$OUT/$program" "$name" || { echo "FAILED $program $name"; failed=1; }
    done
done
exit $failed
