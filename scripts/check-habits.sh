#!/usr/bin/env bash
# The rules of the house that no compiler checks. Each finding names its rule; CONTRIBUTING.md says why.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0
# What runs inside other people's programs, as ARCHITECTURE.md's table of crates says.
inside=$(python3 scripts/structure.py inside)
mapfile -t inside <<<"$inside"

# Prints the lines of FILES that match PATTERN, without comments and without what follows #[cfg(test)].
code() { # PATTERN FILES...
    awk -v pattern="$1" '
        FNR == 1 { skip = 0 }
        /^[[:space:]]*#\[cfg\(test\)\]/ { skip = 1 }
        { line = $0; sub(/\/\/.*/, "", line) }
        !skip && line ~ pattern { print FILENAME ":" FNR ": " $0 }
    ' "${@:2}"
}

report() { # RULE FINDINGS
    [ -n "$2" ] || return 0
    bad=1
    printf '%s\n%s\n\n' "$1" "$2"
}

mapfile -t files < <(find "${inside[@]}" -name '*.rs' ! -path crates/fabric/src/atomic.rs ! -path 'crates/fabric/src/atomic/*' ! -path crates/fabric/src/model.rs ! -path 'crates/fabric/src/sim/*' | sort)
report "Atomics come from fabric::sync, the seam that loom can replace:" \
    "$(code '(core|std)::sync::atomic' "${files[@]}")"
report "No printing and no std I/O inside other people's programs:" \
    "$(code '(^|[^_[:alnum:]])(e?print(ln)?|dbg)!|std::(io|fs|net|thread|process)::|std::[{](.*[^:_[:alnum:]])?(io|fs|net|thread|process)([^_[:alnum:]]|$)' "${files[@]}")"
report "No allocation inside other people's programs:" \
    "$(code '(^|[^_[:alnum:]])(alloc::|(Vec|VecDeque|String|CString|Box|Arc|Rc|HashMap|HashSet|BTreeMap|BTreeSet|OnceLock|Mutex)([^_[:alnum:]]|$)|(vec|format)!)|[.](to_vec|to_owned|to_string)[(]' "${files[@]}")"
mapfile -t files < <(find "${inside[@]}" crates/{progress,cluster,agent,cm,ether,filters,via,vipl}/src -name '*.rs' ! -path crates/fabric/src/credentials.rs ! -path crates/sockets/src/interface/options.rs | sort)
report "Users are compared in fabric::credentials alone (the overflow uid, user namespaces and root are traps):" \
    "$(code '(uid|uid[(][)]|user[(][)])([.]as_raw[(][)])? *[!=]= |[!=]= *[a-z_.:]*uid([^_[:alnum:]]|$)|SO_PEERCRED|peercred|user(::|[.])(number|uid)[^;]*[!=]=|theirs *[!=]= *uid|as_raw[(][)] *[!=]= *(uid|0)|Some[(]0[)] *[!=]= .*uid' "${files[@]}")"
mapfile -t files < <(find crates/{sockets,preload}/src -name '*.rs' ! -path 'crates/sockets/src/peering*' | sort)
report "Where a peer is, only sockets/src/peering asks; others ask for its facts, or do its operations:" \
    "$(code 'is_remote|Peering::|[.]wire[(][)]|wire::Wire' "${files[@]}")"
report "No file over 1500 lines; split it by what it is about:" \
    "$(git ls-files -- '*.rs' '*.c' '*.py' '*.sh' | xargs -r wc -l | awk '$2 != "total" && $1 > 1500 { print $2 ": " $1 " lines" }')"
report "Every Rust file of a crate opens with what it is for (//!):" \
    "$(git ls-files -- 'crates/*/src/*.rs' | while read -r file; do [ ! -e "$file" ] || head -n 1 "$file" | grep -q '^//!' || echo "$file"; done)"

# Since this branch has left main, where there is such a history.
if base=$(git merge-base HEAD main 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null); then
    report "Commit subjects have at most 72 characters:" \
        "$(git log --no-merges --format='%h %s' "$base"..HEAD | python3 -c 'import sys
for line in sys.stdin:
    commit, _, subject = line.rstrip("\n").partition(" ")
    if len(subject) > 72: print(f"{commit}: {len(subject)} characters: {subject}")')"
fi

python3 scripts/structure.py || bad=1
report "Each mechanism that tests/switched_off.py switches off is found where tests/mechanisms.py has it:" \
    "$(python3 tests/switched_off.py --check 2>&1 || true)"
report "Each mend that tests/taken_out.py takes out is found where tests/mends.py has it:" \
    "$(python3 tests/taken_out.py --check 2>&1 || true)"

[ $bad = 0 ] && echo "habits: no finding"
exit $bad
