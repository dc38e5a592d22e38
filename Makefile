# `make run` and `make test` do all the set-up on a fresh Debian or Ubuntu machine, as root.
# Each says what it installs. `make help` lists the rest.

# rustup puts cargo there; a shell that is older than the installation does not know.
export PATH := $(HOME)/.cargo/bin:$(PATH)

# Where rustup cannot download the pinned toolchain but has the same version under another name, that one serves.
PINNED := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
ifeq ($(shell RUSTUP_AUTO_INSTALL=0 rustc --version >/dev/null 2>&1 && echo there),)
ifneq ($(findstring rustc $(PINNED) ,$(shell RUSTUP_TOOLCHAIN=stable RUSTUP_AUTO_INSTALL=0 rustc --version 2>/dev/null)),)
export RUSTUP_TOOLCHAIN := stable
endif
endif

CARGO ?= cargo
LISTEN ?= 127.0.0.1:3000
DATA_DIR ?= data
COFFER := target/release/coffer
# What the checks build and run.
CI := --profile ci --locked
CI_COFFER := target/ci/coffer
NO_BASE := echo "note: the template 'base' could not be built; 'host' stands in for it"
# Lints while it compiles: clippy-driver is rustc with lints, so that nothing is compiled twice for them.
LINTS := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS='-Dwarnings__CLIPPY_HACKERY__'
LINTED := $(LINTS) $(CARGO)

.PHONY: help build embedded dist deb run demo test check doc unit e2e vm vm-ci kernels soak bench fuzz fmt agentd ui template catalogue catalogue-sizes agents try-real code setup-build setup-check setup-run setup-test setup-bench setup-vm screenshots

help:
	@echo "make run     set up, build and start a server on $(LISTEN) with its data in $(DATA_DIR)/"
	@echo "make demo    a task, three agents that compete for it in forks, and the winner's pull request; offline (KEEP=1)"
	@echo "make test    set up, then every check: format, lints, unit, store, engine and SDK tests, and Debian 12 in QEMU"
	@echo "make build   the release binary, at $(COFFER)"
	@echo "make deb     the package for Debian and Ubuntu, in target/dist (COFFER_BIN=)"
	@echo "make dist    the release binary in an archive, with checksums, in target/dist (VERSION=)"
	@echo "make soak    kill every part at $(KILLS) random moments, and look for what was lost (SEED=, KILLS=);"
	@echo "             pause and fork under write load, with kills in between (PAUSES=, FORKS=, IMAGES=);"
	@echo "             kill servers and nodes over tasks that agents work on, on both databases (TASK_KILLS=),"
	@echo "             and over builds of templates, pulls of images and writes to volumes (BUILD_KILLS=)"
	@echo "make agents     real agents, installed by their recipes, from nothing to a pull request with a scripted model; AGENTS=codex,…"
	@echo "make try-real   a real agent with your key on a real issue, on a server that runs (AGENT=, KEY_ENV=, ISSUE=), with times"
	@echo "make catalogue  build every template of the catalogue and look inside; catalogue-sizes measures them (make run)"
	@echo "make vm      boot stock kernels in virtual machines and test there (VM=\"debian12 debian13 newest hybrid\")"
	@echo "make kernels run the node's tests as if on each known host's kernel, by doing without what it lacks"
	@echo "make bench   measure next to crun, runc, bubblewrap, gVisor and Docker, and write docs/performance.md"
	@echo "make code    build the code interpreter's template and run E2B's SDKs of it against a server"
	@echo "make fuzz    feed readers of hostile bytes with what they do not expect, a minute each"
	@echo "make check   format, lints and types; compiles all tests and runs none"
	@echo "make doc     the code's documentation, in target/doc; broken links are errors"
	@echo "make fmt     format the sources: Rust, Python and TypeScript"
	@echo "make screenshots  take the pictures of the README anew, of a real server (docs/images)"

build: embedded
	$(CARGO) build --release --locked -p coffer

# What a release consists of. VERSION must be that of Cargo.toml.
VERSION ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# COFFER_PORTABLE: it has to start on machines with an older C library than this one's.
dist: export COFFER_PORTABLE = 1
dist: build
	scripts/dist $(VERSION)

# The package for Debian and Ubuntu, of a binary that is there (COFFER_BIN) or of the release build.
deb: $(if $(COFFER_BIN),,build)
	scripts/deb

# What coffer embeds comes first: agentd, which is static, and the web UI, which is left out without Node. Both at once,
# because the UI mostly waits for a registry and agentd's last step uses one processor.
embedded: setup-build
	@mkdir -p target
	@scripts/build-ui >target/build-ui.log 2>&1 & ui=$$!; scripts/build-agentd; agentd=$$?; \
		wait $$ui; ui=$$?; cat target/build-ui.log; exit $$((agentd + ui))

agentd: setup-build
	scripts/build-agentd

ui: setup-build
	scripts/build-ui

# A binary that is there already saves the build: COFFER_BIN, or that of a package. BUILD=1 builds all the same.
PREBUILT := $(if $(BUILD),,$(or $(COFFER_BIN),$(wildcard /usr/bin/coffer)))
ifneq ($(PREBUILT),)
run: setup-run
	@echo "make run: uses $(PREBUILT) (BUILD=1 builds from source), builds the template 'base' unless it is there"
	@echo "make run: (1 to 3 minutes), then serves on $(LISTEN) with its data in $(DATA_DIR)/; Ctrl-C stops it"
	@$(PREBUILT) template build base || $(NO_BASE)
	$(PREBUILT) up --listen $(LISTEN) --data-dir $(DATA_DIR)
else
run: announce build template
	$(COFFER) up --listen $(LISTEN) --data-dir $(DATA_DIR)
endif

# What is ahead, before it begins. The times are those of CONTRIBUTING.md, on two cores.
.PHONY: announce
announce:
	@echo "make run: 1. installs missing packages, and names each"
	@echo "make run: 2. builds $(COFFER)$(if $(wildcard $(COFFER)), (only what changed), (8 to 15 minutes the first time))"
	@echo "make run: 3. builds the template 'base' unless it is there (1 to 3 minutes)"
	@echo "make run: 4. serves on $(LISTEN) with its data in $(DATA_DIR)/; Ctrl-C stops it"

# On a server of its own, which goes again; KEEP=1 leaves it up to look at.
demo: build template
	COFFER_BIN=$(CURDIR)/$(COFFER) scripts/demo $(if $(KEEP),--keep)

# Where it cannot be built, as without a network, the template 'host' stands in for it.
template: setup-run build
	@$(COFFER) template build base || $(NO_BASE)

test: check unit e2e vm-ci

check: setup-check embedded
	$(CARGO) fmt --all --check
	scripts/lint
	scripts/build-ui --check
	scripts/module-graph --check
	$(LINTED) test $(CI) --workspace --no-run

# The documentation of the code, private items too, with broken links as errors. Apart from `check`, because rustdoc
# compiles every dependency's metadata once more: about a minute on two cores.
doc: embedded
	RUSTDOCFLAGS=-Dwarnings $(LINTED) doc $(CI) --workspace --no-deps --document-private-items

unit: setup-test embedded
	scripts/deny
	$(LINTS) CARGO=$(CARGO) scripts/unit

e2e: setup-test embedded
	@# As the tests' build has it: with other targets other features of crates would be chosen, and all be compiled again.
	$(LINTED) build $(CI) --workspace --bin coffer --test coffer
	@$(CI_COFFER) template build base || $(NO_BASE)
	COFFER_BIN=$(CURDIR)/$(CI_COFFER) e2e/run

# Installs the agents of today, and drives each with a scripted model to a pull request.
agents: setup-test build template
	e2e/run agents

# For a person with keys: costs money, and opens a pull request.
try-real:
	@scripts/try-real

# Builds every template of the catalogue, and tries what is inside.
catalogue: setup-test build template
	E2E_CATALOGUE=all e2e/run host -- -k catalogue

# What each of them takes, on a server that runs (`make run`); the table in docs/templates.md.
catalogue-sizes:
	scripts/catalogue-sizes $(COFFER) $(DATA_DIR)

# Stock Debian kernels in QEMU, with systemd. VM names some of the machines, VM_TESTS is for pytest, VM_WHOLE=1 runs
# all tests that make sense there.
vm: setup-vm build template
	e2e/vm/run $(if $(VM_WHOLE),--whole) $(VM) $(if $(VM_TESTS),-- $(VM_TESTS))

# The least of it: stock Debian 12 with what the tests above were run with.
vm-ci: setup-vm
	COFFER_BIN=$(CURDIR)/$(CI_COFFER) e2e/vm/run --ci debian12

# Old kernels on this one: the whole node suite without what each host's kernel lacks. `make test` has a slice of it.
KERNEL_HOSTS ?= debian12 ubuntu2404 debian13 cgroup1
kernels: setup-test agentd
	set -e; for host in $(KERNEL_HOSTS); do echo "as on $$host"; \
		COFFER_KERNEL_HOST=$$host $(LINTED) test $(CI) --workspace --test node; done

# The code interpreter with E2B's SDKs. Apart from `make test`, because its template takes minutes to build.
code: setup-test embedded
	$(LINTED) build $(CI) --workspace --bin coffer --test coffer
	@$(CI_COFFER) template build base
	COFFER_BIN=$(CURDIR)/$(CI_COFFER) e2e/run code

# A real server with something to show, in Chromium.
screenshots: setup-test build template
	e2e/run screenshots

# Parts are killed while clients work. The seed decides who and when; a failure says how to have it again.
SEED ?= $(shell date +%s)
KILLS ?= 100
PAUSES ?= 2000
FORKS ?= 500
IMAGES ?= 50
TASK_KILLS ?= 200
BUILD_KILLS ?= 100
soak: setup-test build template
	SOAK_SEED=$(SEED) SOAK_KILLS=$(KILLS) SOAK_PAUSES=$(PAUSES) SOAK_FORKS=$(FORKS) SOAK_IMAGES=$(IMAGES) \
		TASK_KILLS=$(TASK_KILLS) BUILD_KILLS=$(BUILD_KILLS) e2e/run soak

bench: setup-bench template
	bench/run

# Each reader of hostile bytes for a minute; FUZZ_SECONDS for longer.
fuzz: setup-build
	fuzz/run

fmt: setup-check
	$(CARGO) fmt --all
	[ ! -x target/lint/bin/ruff ] || target/lint/bin/ruff format --quiet
	scripts/build-ui --format

setup-build:
	@scripts/setup build

setup-check:
	@scripts/setup check

setup-run:
	@scripts/setup run

setup-test: setup-run
	@scripts/setup test

setup-bench: setup-run
	@scripts/setup bench

setup-vm: setup-run
	@scripts/setup vm
