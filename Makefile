# The one entrance. `make help` lists what there is: the lines with two hashes below.
#
# Every target first installs what it lacks (scripts/bootstrap.sh says what and why), so that a fresh machine needs nothing
# but git, make and the network. What only tests need goes into build/packages (scripts/tests-root.sh).

SHELL   := /bin/sh
PREFIX  ?= /usr/local
DESTDIR ?=
TARGET  := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
RELEASE := $(TARGET)/release
# Where an uninstalled `shunt` finds the C programs that it measures: beside itself.
LIBEXEC := $(TARGET)/libexec
CARGO   := scripts/cargo

FUZZ_SECONDS ?= 600
SOAK_SECONDS ?= 600
ETHER_SOAK_SECONDS ?= 1800
PERTURB_SECONDS ?= 600
BENCH        ?= all
PLOTS        ?= build/plots
export FUZZ_SECONDS

bindir    := $(DESTDIR)$(PREFIX)/bin
libdir    := $(DESTDIR)$(PREFIX)/lib/shunt
vipldir   := $(DESTDIR)$(PREFIX)/lib
incdir    := $(DESTDIR)$(PREFIX)/include
execdir   := $(DESTDIR)$(PREFIX)/libexec/shunt
mandir    := $(DESTDIR)$(PREFIX)/share/man
bashdir   := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
zshdir    := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
fishdir   := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
unitdir   := $(DESTDIR)$(PREFIX)/lib/systemd/system
usersdir  := $(DESTDIR)$(PREFIX)/lib/sysusers.d
docdir    := $(DESTDIR)$(PREFIX)/share/doc/shunt

.PHONY: help build programs demo quick test bench wheel install uninstall models sim mends fuzz soak ether-soak conformance qemu users plain perturb switched-off checked far libcs check fmt fresh dist clean
.DEFAULT_GOAL := help

help: ## this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Variables: PREFIX=$(PREFIX) DESTDIR= FUZZ_SECONDS=$(FUZZ_SECONDS) SOAK_SECONDS=$(SOAK_SECONDS) BENCH=$(BENCH) PLOTS=$(PLOTS)"

demo: build ## Redis, unmodified, plain and under Shunt: a table and a plot (build/plots)
	@scripts/bootstrap.sh demo
	@mkdir -p $(PLOTS)
	$(RELEASE)/shunt demo --plot $(PLOTS)

build: ## the command and the libraries, in target/release
	@scripts/bootstrap.sh build
	$(CARGO) build --release --locked -p shunt -p preload -p vipl
	@ln -sf libvipl.so $(RELEASE)/libvipl.so.1
	@$(MAKE) --no-print-directory programs

programs: # the programs that `shunt bench` runs
	@$(MAKE) --no-print-directory -C bench/programs OUT=$(LIBEXEC)

wheel: ## the Python package, in build/wheels
	@scripts/bootstrap.sh test
	@scripts/tests-root.sh enter scripts/wheel.sh

quick: ## what says most in under four minutes, for while you work: formatting, habits, lints, unit, short models, sockets and Redis under Shunt
	@scripts/test.sh quick

test: ## everything that CI runs: habits, lints, unit, black-box, short models and fuzzers (TEST_ONLY=stage for one)
	@scripts/test.sh

bench: ## Shunt, kernel TCP, UNIX sockets and raw memory in one run (BENCH=latency, throughput, apps, ...: see `shunt bench --help`)
	@scripts/bootstrap.sh $(or $(if $(filter all,$(BENCH)),ftp rpc ether ofi filters,$(filter ftp rpc ether ofi filters,$(BENCH))),build)
	@$(MAKE) --no-print-directory build
	@mkdir -p $(PLOTS)
	python=$(CURDIR)/build/bench-venv/bin/python; [ ! -x $$python ] || export SHUNT_BENCH_PYTHON=$$python; \
	    $(RELEASE)/shunt bench $(BENCH) --plot $(PLOTS)

models: ## loom's exhaustive models of rings, tripwires and path changes (MODELS=short for the form in CI)
	@scripts/bootstrap.sh build
	@scripts/models.sh

fuzz: ## every fuzzer for FUZZ_SECONDS
	@scripts/bootstrap.sh fuzz
	@scripts/fuzz.sh $(FUZZ_SECONDS)

soak: build ## random checksummed traffic for SOAK_SECONDS, with forks, closes and kills
	@scripts/bootstrap.sh test
	@TEST_ONLY=soak scripts/test.sh

ether-soak: build ## shunt ether with random frames and hosts that are killed, ETHER_SOAK_SECONDS for each driver (an hour in all)
	@scripts/bootstrap.sh test
	@ETHER_SOAK_SECONDS=$(ETHER_SOAK_SECONDS) PYTEST_PATHS=tests/test_ether.py PYTEST_ARGS="-s -k random_frames" TEST_JOBS=1 TEST_ONLY=blackbox scripts/test.sh

sim: ## the library in a simulated world, SIM_SECONDS long (600); then each rule switched off must make a seed fail
	@scripts/sim.sh --seconds $(or $(SIM_SECONDS),600)
	@scripts/sim.sh --hosts --seconds $(or $(SIM_SECONDS),600)
	@scripts/sim.sh --spaces --seconds $(or $(SIM_SECONDS),600)
	@scripts/sim.sh rules

mends: ## takes one mend of an old race after the other out: the simulator must find what it mended (MENDS="ask_again short_reads" for some)
	@scripts/sim.sh mends $(MENDS)

conformance: build ## other people's test suites, plain against Shunt against forced TCP; the table goes to build/conformance.txt
	@scripts/bootstrap.sh conformance
	@TEST_ONLY=conformance scripts/test.sh

far: build ## connections between hosts: network namespaces, agents, libfabric's tcp provider
	@scripts/bootstrap.sh test
	@TEST_ONLY=far scripts/test.sh

users: build ## all examples of tests/apps between two users
	@scripts/bootstrap.sh test
	@USERS_TESTS=test TEST_ONLY=users scripts/test.sh

libcs: build programs ## the library with other releases of glibc, in roots that debootstrap makes (LIBCS="bullseye trixie sid")
	@scripts/bootstrap.sh test
	@scripts/libcs.sh

qemu: build ## two guests under QEMU with TIPC, bonds and `shunt ether`, all of it (what is short is in make test); figures go to build/qemu
	@scripts/bootstrap.sh test
	@TEST_ONLY=qemu scripts/test.sh

# Calls and instructions that are counted, time on one processor, and what has moved by the end of a benchmark, are those of a library that
# holds nobody up. No other test's name has these words.
MEASURED := over_and_over or test_costs or test_instructions or test_one_processor or test_bench

perturb: build ## all black-box tests but those that measure, and PERTURB_SECONDS of soak, with threads held up at random between steps on shared memory
	@scripts/bootstrap.sh test
	@PERTURB_SECONDS=$(PERTURB_SECONDS) DEATHS=$(or $(DEATHS),200) PERTURB_TESTS="not ($(MEASURED))" PERTURB_FAR_TESTS= TEST_ONLY=perturb scripts/test.sh

plain: build ## all black-box tests without Shunt: whether the tests themselves are right
	@scripts/bootstrap.sh test
	@TEST_ONLY=plain scripts/test.sh

switched-off: ## switches one mechanism after the other off, and holds its tests to failing (MECHANISMS="exec fork" for some)
	@scripts/bootstrap.sh test
	@scripts/tests-root.sh enter build/venv/bin/python tests/switched_off.py $(MECHANISMS)

checked: build ## all of VIPL's tests under valgrind and AddressSanitizer (one of each program under valgrind in make test)
	@scripts/bootstrap.sh test
	@TEST_ONLY=checked scripts/test.sh

check: ## formatting, clippy, habits, licences and advisories
	@scripts/bootstrap.sh test
	@TEST_ONLY="formatting habits clippy licences advisories" scripts/test.sh

fmt: ## formats the Rust code
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

install: ## command, libraries, bench programs, man pages, completions, into DESTDIR/PREFIX (after make build)
	@test -x $(RELEASE)/shunt || { echo "make install: nothing is built yet; run 'make build' first" >&2; exit 1; }
	install -d $(bindir) $(libdir) $(execdir) $(mandir)/man1 $(mandir)/man5 $(bashdir) $(zshdir) $(fishdir) $(docdir) $(unitdir) $(usersdir)
	install -m 755 $(RELEASE)/shunt $(bindir)/shunt
	install -m 755 $(RELEASE)/libshunt.so $(libdir)/libshunt.so
	install -d $(vipldir)/pkgconfig $(incdir)
	install -m 755 $(RELEASE)/libvipl.so $(vipldir)/libvipl.so.1
	ln -sf libvipl.so.1 $(vipldir)/libvipl.so
	install -m 644 crates/vipl/include/vipl.h $(incdir)/vipl.h
	install -m 644 crates/preload/include/shunt.h $(incdir)/shunt.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$($(RELEASE)/shunt --version | sed 's/.* //')|" crates/vipl/vipl.pc.in \
	    >$(vipldir)/pkgconfig/vipl.pc
	find $(LIBEXEC) -maxdepth 1 -type f -perm -100 -exec install -m 755 -t $(execdir) {} +
	rm -rf build/generated && mkdir -p build/generated/man build/generated/completions
	$(RELEASE)/shunt generate man build/generated/man
	$(RELEASE)/shunt generate completions build/generated/completions
	install -m 644 -t $(mandir)/man1 build/generated/man/*.1
	install -m 644 -t $(mandir)/man5 build/generated/man/*.5
	cd build/generated/completions && for file in *; do case $$file in \
	    _*) install -m 644 $$file $(abspath $(zshdir))/$$file ;; \
	    *.fish) install -m 644 $$file $(abspath $(fishdir))/$$file ;; \
	    *) install -m 644 $$file $(abspath $(bashdir))/shunt ;; \
	    esac; done
	sed -e 's|/usr/bin/shunt|$(PREFIX)/bin/shunt|' packaging/shunt-ether@.service >$(unitdir)/shunt-ether@.service
	sed -e 's|/usr/bin/shunt|$(PREFIX)/bin/shunt|' packaging/shunt-agent.service >$(unitdir)/shunt-agent.service
	install -m 644 packaging/shunt-ether.sysusers $(usersdir)/shunt-ether.conf
	install -m 644 -t $(docdir) README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE docs/*.md

uninstall: ## removes what install put
	rm -f $(bindir)/shunt $(mandir)/man1/shunt.1 $(mandir)/man1/shunt-*.1 $(mandir)/man5/shunt.conf.5 $(mandir)/man5/shunt.rules.5
	rm -f $(unitdir)/shunt-agent.service
	rm -f $(unitdir)/shunt-ether@.service $(usersdir)/shunt-ether.conf
	rm -f $(bashdir)/shunt $(zshdir)/_shunt $(fishdir)/shunt.fish
	rm -f $(vipldir)/libvipl.so $(vipldir)/libvipl.so.1 $(vipldir)/pkgconfig/vipl.pc $(incdir)/vipl.h $(incdir)/shunt.h
	rm -rf $(libdir) $(execdir) $(docdir)

dist: build ## build/shunt-VERSION-ARCH.tar.gz: a PREFIX to unpack at /
	@packaging/tarball.sh $(TARGET)

fresh: ## proves that a machine with nothing installed can `make demo` and `make test` (needs root and debootstrap)
	@scripts/fresh.sh

clean: ## removes everything that was built
	scripts/tests-root.sh remove
	rm -rf target build fuzz/target fuzz/corpus fuzz/artifacts
	find tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
