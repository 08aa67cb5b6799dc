# Everything that a developer runs. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
BIN := bin
TOOLS := $(BIN)/tools
GOFMT = $(shell $(GO) env GOROOT)/bin/gofmt

# Raft reports to hashicorp/go-metrics, as the product does, only with this tag.
TAGS := hashicorpmetrics
# The version comes from git describe below, so Go needs no git to stamp one, and a tree that git
# refuses to read builds all the same.
export GOFLAGS := $(strip $(filter-out -buildvcs%,$(GOFLAGS)) -buildvcs=false)

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := $(if $(VERSION),-X main.buildVersion=$(VERSION))
BUILDFLAGS := -tags=$(TAGS) -trimpath

# PACKAGES and TESTFLAGS narrow test and race: make race PACKAGES=./fsm/... TESTFLAGS=-short
PACKAGES ?= ./...
TESTFLAGS ?=
FUZZTIME ?= 20s

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## build, then run a local cluster in the foreground
	$(BIN)/quorate dev

.PHONY: demo
demo: build ## build, then run three nodes, a gateway and an upstream, with lines to paste
	$(BIN)/quorate gateway demo

# go build is its own judge of what is stale: with nothing to do it takes a fraction of a second.
.PHONY: build
build: ## build bin/quorate
	CGO_ENABLED=0 $(GO) build $(BUILDFLAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/quorate ./cmd/quorate

.PHONY: test
test: build ## run all tests
	QUORATE_BINARY=$(CURDIR)/$(BIN)/quorate $(GO) test -tags=$(TAGS) $(TESTFLAGS) $(PACKAGES)
	cd jepsen && $(GO) test -tags=$(TAGS) $(TESTFLAGS) ./sim ./model ./check ./history ./report ./workload ./netns ./cmd/jepsen && \
	  $(GO) test -tags=$(TAGS) -run '^Test(Spare|Draws|Documents|Tables)' ./run && \
	  $(GO) test -tags=$(TAGS) -run '^Test(Judge|History)' ./gateways

.PHONY: race
race: build ## run the tests under the race detector (needs a C compiler)
	QUORATE_BINARY=$(CURDIR)/$(BIN)/quorate CGO_ENABLED=1 \
	  $(GO) test -race -tags=$(TAGS) $(TESTFLAGS) $(PACKAGES)

.PHONY: e2e
e2e: build ## kill leaders under a crowd of checks, 50 rounds on real processes
	QUORATE_BINARY=$(CURDIR)/$(BIN)/quorate QUORATE_E2E_ROUNDS=50 \
	  $(GO) test -tags=$(TAGS) -count=1 -v -timeout 20m -run Crowd ./cmd/quorate

# go test lists the targets of each package, then closes with "ok PACKAGE".
.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (20s)
	@targets=$$($(GO) test -tags=$(TAGS) -list '^Fuzz' $(PACKAGES) | \
	  awk '/^Fuzz/ { name[n++] = $$1 } /^ok/ { for (i = 0; i < n; i++) print $$2, name[i]; n = 0 }'); \
	[ -n "$$targets" ] || { echo 'no fuzz target found' >&2; exit 1; }; \
	while read -r package target; do \
	  echo "fuzz $$package $$target"; \
	  $(GO) test -tags=$(TAGS) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x "$$package" </dev/null; \
	done <<<"$$targets"

# The simulation: a seed gives a schedule of faults; make sim SEED=n runs one again and prints it.
SEEDS ?= 1000
SEED ?=

.PHONY: sim
sim: ## run SEEDS (1000) simulated clusters under faults, or SEED=n again
	cd jepsen && QUORATE_SIM_SEEDS=$(SEEDS) QUORATE_SIM_SEED=$(SEED) \
	  $(GO) test -tags=$(TAGS) -count=1 -v -timeout 30m -run '^TestSim$$' ./sim | \
	  awk '/sim: [0-9]+ seeds/ { summary = $$0; next } { print } END { if (summary != "") print summary }'

.PHONY: sim-guards
sim-guards: ## switch each guard off in turn: the simulation must notice
	cd jepsen && $(GO) test -tags=$(TAGS),chaos -count=1 -v -timeout 30m -run '^TestGuards$$' ./sim

# LAYER=process plays those that take real processes alone, MUTANT=m05 those whose id begins so.
LAYER ?= model,sim,process
MUTANT ?=

.PHONY: chaos-mutants
chaos-mutants: ## leave out each rule of the product in turn: the invariant that is there for it must break
	cd jepsen && QUORATE_LAYER=$(LAYER) QUORATE_MUTANT=$(MUTANT) \
	  $(GO) test -tags=$(TAGS),chaos -count=1 -v -timeout 60m -run '^Test(MutantsAreKilled|CatalogueIsComplete)$$' ./mutants

.PHONY: model
model: ## run SEEDS (1000) of the model of the state machine
	cd jepsen && QUORATE_MODEL_SEEDS=$(SEEDS) $(GO) test -tags=$(TAGS) -count=1 -v -timeout 30m -run '^TestModel$$' ./model

.PHONY: damage
damage: ## damage a node's files at 100 random places of each kind: refused or harmless, never silent
	QUORATE_DAMAGE_ROUNDS=100 $(GO) test -tags=$(TAGS) -count=1 -v -timeout 20m -run '^TestDamage$$' ./partition/storage

# ROUNDS of each fault; needs root, loop devices and mkfs.ext4.
ROUNDS ?= 1

.PHONY: disk
disk: build ## as root: cut the power of real processes, fill and kill their disks, ROUNDS (1) times
	cd jepsen && QUORATE_BINARY=$(CURDIR)/$(BIN)/quorate QUORATE_DISK_REQUIRED=1 QUORATE_DISK_ROUNDS=$(ROUNDS) \
	  $(GO) test -tags=$(TAGS) -count=1 -v -timeout $$((20 + 15 * $(ROUNDS)))m ./disk

.PHONY: cluster
cluster: build build-chaos ## five nodes with TLS: added, drained, killed, cut off, replaced, slots moved, restored, under load
	cd jepsen && QUORATE_BINARY=$(CURDIR)/$(BIN)/quorate \
	  QUORATE_CHAOS_BINARY=$(CURDIR)/$(BIN)/quorate-chaos \
	  $(GO) test -tags=$(TAGS) -count=1 -v -timeout 20m ./cluster

.PHONY: chaos-sdk
chaos-sdk: build ## four gateways as processes on the SDK: leaders killed, a partition split, the cluster stopped and slowed
	cd jepsen && QUORATE_BINARY=$(CURDIR)/$(BIN)/quorate QUORATE_WRK=$(if $(shell command -v wrk),1) \
	  $(GO) test -tags=$(TAGS) -count=1 -v -timeout 10m ./gateways

# The program that tests can hold at given points; it is for nothing else.
.PHONY: build-chaos
build-chaos:
	CGO_ENABLED=0 $(GO) build -tags=$(TAGS),chaos -trimpath -o $(BIN)/quorate-chaos ./cmd/quorate

.PHONY: build-jepsen
build-jepsen:
	cd jepsen && CGO_ENABLED=0 $(GO) build -tags=$(TAGS) -trimpath -o ../$(BIN)/jepsen ./cmd/jepsen

# A run takes what the machine has: networks and disks of the nodes' own need root. What is missing is left out, and
# the run says so. REQUIRE=namespaces,disks refuses to go on without.
DURATION ?= 10m
MIX ?= mixed
NODES ?= 5
REQUIRE ?=
CHAOS_DIR ?= data/chaos/$(MIX)-$(shell date -u +%Y%m%dT%H%M%S)
CHAOS_RUN = $(BIN)/jepsen run --program $(BIN)/quorate-chaos --release $(BIN)/quorate --nodes $(NODES) $(if $(SEED),--seed $(SEED)) \
	  $(if $(REQUIRE),--require $(REQUIRE))

.PHONY: chaos
chaos: build build-chaos build-jepsen ## five real nodes under every fault for DURATION (10m), and a verdict; MIX, SEED, NODES, REQUIRE
	$(CHAOS_RUN) --mix $(MIX) --duration $(DURATION) --out $(CHAOS_DIR)

.PHONY: chaos-smoke
chaos-smoke: build build-chaos build-jepsen ## the same in under four minutes, with wrong wall clocks, on any machine
	cd jepsen && QUORATE_CHAOS_BINARY=$(CURDIR)/$(BIN)/quorate-chaos \
	  $(GO) test -tags=$(TAGS) -count=1 -timeout 4m -run '^TestClocks' ./run
	@rm -rf data/chaos/smoke
	$(CHAOS_RUN) --mix smoke --out data/chaos/smoke

.PHONY: moves
moves: build build-chaos ## split, merge and move with each fault at each step: all cases, an hour or so
	cd jepsen && QUORATE_BINARY=$(CURDIR)/$(BIN)/quorate \
	  QUORATE_CHAOS_BINARY=$(CURDIR)/$(BIN)/quorate-chaos QUORATE_MOVES=all \
	  $(GO) test -tags=$(TAGS) -count=1 -v -timeout 2h -run '^TestMoves$$' ./cluster

.PHONY: bench-moves
bench-moves: build ## move 100,000 keys under load: how long nobody decides, how many checks wait
	cd jepsen && QUORATE_BINARY=$(CURDIR)/$(BIN)/quorate \
	  $(GO) test -tags=$(TAGS) -count=1 -v -timeout 30m -run '^$$' -bench '^BenchmarkFreeze$$' -benchtime 1x ./cluster

.PHONY: bench-failover
bench-failover: build ## kill -9 the leader 50 times under load: how long until the first allow, and is none lost
	cd jepsen && QUORATE_BINARY=$(CURDIR)/$(BIN)/quorate \
	  $(GO) test -tags=$(TAGS) -count=1 -v -timeout 20m -run '^$$' -bench '^BenchmarkFailover$$' -benchtime 1x ./cluster

# The Go benchmarks: each COUNT times, beside those of the run before, which data/bench keeps, or of BASE=FILE.
BENCH ?= .
COUNT ?= 6
BENCHTIME ?= 200ms
BENCH_PACKAGES ?= ./fsm ./partition/... ./policy ./rpc ./sdk/... ./bench
BASE ?= data/bench/before.txt

.PHONY: bench
bench: $(TOOLS)/benchstat ## run the Go benchmarks, with allocations, and compare them with the run before
	@mkdir -p data/bench; [ ! -s data/bench/now.txt ] || mv data/bench/now.txt data/bench/before.txt
	$(GO) test -tags=$(TAGS) -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -benchtime $(BENCHTIME) -timeout 60m \
	  $(BENCH_PACKAGES) | tee data/bench/now.txt.part
	@mv data/bench/now.txt.part data/bench/now.txt
	@if [ -s '$(BASE)' ]; then $(TOOLS)/benchstat '$(BASE)' data/bench/now.txt; \
	  else $(TOOLS)/benchstat data/bench/now.txt; fi

# Redis and etcd are Debian's: apt-get install redis-server etcd-server. What is missing is left out, and said so.
PEER_ROUNDS ?= 5
PEER_FLAGS ?=

.PHONY: bench-peers
bench-peers: build ## measure Quorate beside Redis, etcd and Gubernator; writes docs/performance.md
	cd bench/peers && $(GO) build -tags=$(TAGS) -o $(abspath $(BIN))/quorate-peers .
	$(BIN)/quorate-peers -quorate $(abspath $(BIN))/quorate -rounds $(PEER_ROUNDS) -doc docs/performance.md \
	  -svg docs/performance-peers.svg $(PEER_FLAGS)

.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/buf ## check style, likely mistakes and forbidden imports
	@unformatted=$$($(GOFMT) -l $$(find . -name '*.go' -not -path './$(BIN)/*' -not -path './data/*')); \
	[ -z "$$unformatted" ] || { echo "not gofmt'ed (make fmt):" >&2; echo "$$unformatted" >&2; exit 1; }
	$(TOOLS)/golangci-lint run ./...
	cd jepsen && $(CURDIR)/$(TOOLS)/golangci-lint run --config $(CURDIR)/.golangci.yml ./...
	cd proto && $(CURDIR)/$(TOOLS)/buf lint

.PHONY: fmt
fmt: $(TOOLS)/buf ## format Go and protobuf files
	$(GOFMT) -s -w $$(find . -name '*.go' -not -name '*.pb.go' -not -path './$(BIN)/*' -not -path './data/*')
	cd proto && $(CURDIR)/$(TOOLS)/buf format -w

PROTO_TOOLS := $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc
BUF_GENERATE := PATH="$(CURDIR)/$(TOOLS):$$PATH" $(CURDIR)/$(TOOLS)/buf generate

.PHONY: proto
proto: $(PROTO_TOOLS) ## regenerate the code of the wire contract
	cd proto && $(BUF_GENERATE)

# Generates beside the tree and compares, so a good tree is not touched and an uncommitted one can
# be verified too.
.PHONY: verify
verify: $(PROTO_TOOLS) ## check that generated code and go.mod are up to date
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	(cd proto && $(BUF_GENERATE) -o "$$fresh"); \
	list() { (cd "$$1" && find . -name '*.pb.go' | LC_ALL=C sort); }; \
	stale=0; \
	diff -u --label committed --label generated <(list proto) <(list "$$fresh") || stale=1; \
	while read -r file; do \
	  [ ! -f "proto/$$file" ] || diff -u "proto/$$file" "$$fresh/$$file" || stale=1; \
	done < <(list "$$fresh"); \
	[ "$$stale" = 0 ] || { echo 'generated code is stale: run make proto' >&2; exit 1; }
	@$(GO) mod tidy -diff && (cd jepsen && $(GO) mod tidy -diff) || { echo 'go.mod or go.sum is not tidy: run go mod tidy' >&2; exit 1; }
	@echo 'generated code and go.mod are up to date'

.PHONY: clean
clean: ## remove what was built, the tools too
	rm -rf $(BIN) dist

# Tools, each pinned by a module of its own under tools/ since their requirements exclude each
# other. A tool is built once, and again when its pins change.
$(TOOLS)/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	$(call build-tool,lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
$(TOOLS)/buf: tools/buf/go.mod tools/buf/go.sum
	$(call build-tool,buf,github.com/bufbuild/buf/cmd/buf)
$(TOOLS)/benchstat: tools/benchstat/go.mod tools/benchstat/go.sum
	$(call build-tool,benchstat,golang.org/x/perf/cmd/benchstat)
$(TOOLS)/protoc-gen-go: tools/protoc/go.mod tools/protoc/go.sum
	$(call build-tool,protoc,google.golang.org/protobuf/cmd/protoc-gen-go)
$(TOOLS)/protoc-gen-go-grpc: tools/protoc/go.mod tools/protoc/go.sum
	$(call build-tool,protoc,google.golang.org/grpc/cmd/protoc-gen-go-grpc)

# go build leaves an up-to-date binary alone, so its time is set by hand: it is the stamp.
define build-tool
@echo "building $@ (once)"
@cd tools/$(1) && CGO_ENABLED=0 $(GO) build -trimpath -o $(CURDIR)/$@ $(2)
@touch $@
endef
