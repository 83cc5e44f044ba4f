# Everything that is built or fetched lies in bin/ and .tools/, which git ignores.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

COMMANDS := $(patsubst %/main.go,./%,$(wildcard cmd/*/main.go))
VERSION ?=
LDFLAGS := $(if $(VERSION),-X github.com/tandem-serving/tandem/cmd/internal/boot.version=$(VERSION))
PKG ?= ./...
BENCH ?= .
BENCHTIME ?= 1s
BENCHFLAGS ?=
TESTFLAGS ?=
FUZZTIME ?= 10s
SCENARIOS ?= .
SEED ?= 1
CHAOSTIME ?= 2m
CHAOSREQUESTS ?= 10000
SOAKTIME ?= 20m
CHAOSLONG ?= 20m
CHAOSLONGREQUESTS ?= 50000
BATCHLINES ?= 1000000
BATCHKILLS ?= 30
KILLTIME ?= 5m
KILLEVERY ?= 10s
LEASEREQUESTS ?= 200
ENGINE ?= vllm

# What tests run against: .ci/fetch says where each comes from. The NIXL library is opened by what is built with a build
# tag and cgo: all of NIXL_TESTED, and the tests that NIXL_USERS has for it.
NIXL_LIBRARY = $(shell readlink -f .tools/nixl)/.nixl_cu12.mesonpy.libs
NIXL_COMMANDS := ./cmd/keeper ./cmd/sim
NIXL_TESTED := ./transfer/nixl $(NIXL_COMMANDS)
NIXL_USERS := ./sim
# The cluster of processes, and the tests that run on it, are a module of their own.
KUBE_MODULE := e2e/kube

.PHONY: help
help: ## show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build every command into bin/, static
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ $(COMMANDS)

.PHONY: nixl
nixl: ## build into bin/nixl/ the commands that can speak NIXL, not static
	CGO_ENABLED=1 go build -trimpath -tags nixl -ldflags '$(LDFLAGS)' -o bin/nixl/ $(NIXL_COMMANDS)

# It compiles what make build compiles, needs no C compiler, and links tests without what debuggers need. Envoy is fetched
# meanwhile. Many tests wait rather than compute: more of them run at a time than there are cores, those that take longest first.
LONGEST_TESTS = ./e2e/serving ./charts ./e2e/matrix ./sidecar ./e2e/security

.PHONY: test
test: ## run the unit tests, and those on simulated engines and the real Envoy: some minutes
	@.ci/fetch envoy & fetch=$$!; CGO_ENABLED=0 go build -trimpath ./...; wait $$fetch
	CGO_ENABLED=0 go test -short -trimpath -ldflags='-s -w' -vet=off -p=$$(($$(nproc) * 3)) -parallel=4 -timeout=10m $(TESTFLAGS) \
		$(if $(filter ./...,$(PKG)),$(LONGEST_TESTS)) $(PKG)

# The tests of these packages start programs. The race detector sees nothing of a program and makes four times the work of the
# rest, so make test-all looks for races in the other packages only, and test-race in these.
START_PROGRAMS = /(e2e/.*|charts|docs)$$

.PHONY: test-all
test-all: modules tools ## run all tests but those on real engines, the packages' own with the race detector
	@set -x; failed=; \
	go list ./... | grep -vE '$(START_PROGRAMS)' | xargs go test -race -p=$$(($$(nproc) + 1)) -timeout=20m $(TESTFLAGS) || failed=1; \
	go list ./... | grep -E '$(START_PROGRAMS)' | xargs go test -p=$$(($$(nproc) * 2)) -timeout=20m $(TESTFLAGS) || failed=1; \
	go test -run '^TestIDsAreTheReferences$$' $(TESTFLAGS) ./epp/tokens || failed=1; \
	(cd $(KUBE_MODULE) && go test -timeout=20m $(TESTFLAGS) ./...) || failed=1; \
	TANDEM_NIXL_LIB=$(NIXL_LIBRARY) go test -race -tags nixl $(TESTFLAGS) $(NIXL_TESTED) || failed=1; \
	TANDEM_NIXL_LIB=$(NIXL_LIBRARY) go test -race -tags nixl -run '^TestNIXL' $(TESTFLAGS) $(NIXL_USERS) || failed=1; \
	test -z "$$failed" # one run tells everything

.PHONY: test-race
test-race: modules tools ## run the tests that start programs with the race detector, too: half an hour
	go list ./... | grep -E '$(START_PROGRAMS)' | xargs go test -race -timeout=30m $(TESTFLAGS)
	cd $(KUBE_MODULE) && go test -race -timeout=20m $(TESTFLAGS) ./...

.PHONY: tools
tools: .tools/envoy .tools/clients .tools/kube .tools/helm .tools/crds .tools/nixl .tools/cyclonedx-gomod .tools/vocabularies .tools/tokenizers .tools/gofakes3 .tools/nats-server .tools/kafka .tools/moto ## fetch or build the real parts that tests need

# In its own folder go test shows what the test prints: how each case went, and how long it took.
.PHONY: test-vllm
test-vllm: modules .tools/vllm .tools/tinymodel .tools/envoy .tools/clients ## run the end-to-end suite on real vLLM engines: 7 GB of disk, 10 GB of memory
	@cd e2e/serving && go test -count=1 -timeout=25m -run '^TestRealEngines$$' $(TESTFLAGS) -vllm $(VLLMFLAGS)

.PHONY: test-connectors
test-connectors: modules .tools/vllm .tools/mooncake .tools/tinymodel .tools/visionmodel ## run pairs of real vLLM engines with their other connectors: 7 GB of disk, 8 GB of memory
	@cd e2e/connectors && go test -count=1 -timeout=40m -run '^TestRealEngines$$' $(TESTFLAGS) -connectors $(CONNECTORSFLAGS)

.PHONY: test-kvcache
test-kvcache: modules .tools/vllm .tools/sglang .tools/tinymodel ## route by the KV events of real vLLM and SGLang engines: 14 GB of disk, 8 GB of memory
	@cd e2e/kvcache && for engines in vllm sglang; do go test -count=1 -timeout=40m -run '^TestRealEngines$$' $(TESTFLAGS) . -kvcache=$$engines || exit 1; done

.PHONY: test-sglang
test-sglang: modules .tools/sglang .tools/tinymodel .tools/envoy .tools/clients ## run the end-to-end suite on real SGLang engines: 7 GB of disk, 10 GB of memory
	@cd e2e/sglang && go test -count=1 -timeout=15m -run '^TestRealEngines$$' $(TESTFLAGS) -sglang $(SGLANGFLAGS)

# Nothing else may run meanwhile: engines and stack share the processors with it.
CALIBRATE ?= 10m
.PHONY: calibrate-vllm
calibrate-vllm: modules .tools/vllm .tools/tinymodel ## compare tandem replay with a real pair of vLLM engines under a trace (CALIBRATE)
	@cd e2e/calibrate && $(LONG) '^TestReplayOfRealEngines$$' -timeout=1h . -args -calibrate=vllm -calibrate.for=$(CALIBRATE)

.PHONY: calibrate-sglang
calibrate-sglang: modules .tools/sglang .tools/tinymodel ## compare tandem replay with a real pair of SGLang engines under a trace (CALIBRATE)
	@cd e2e/calibrate && $(LONG) '^TestReplayOfRealEngines$$' -timeout=1h . -args -calibrate=sglang -calibrate.for=$(CALIBRATE)

ROUNDS ?= 6
.PHONY: test-policies
test-policies: modules .tools/vllm .tools/tinymodel ## compare the cost decision with fixed rules on a real pair of vLLM engines (ROUNDS)
	@cd e2e/policies && $(LONG) '^TestPoliciesOnRealEngines$$' -timeout=2h . -args -policies=vllm -policies.rounds=$(ROUNDS)

.PHONY: test-policies-sglang
test-policies-sglang: modules .tools/sglang .tools/tinymodel ## the same on a real pair of SGLang engines and a plain one (ROUNDS)
	@cd e2e/policies && $(LONG) '^TestPoliciesOnRealEngines$$' -timeout=2h . -args -policies=sglang -policies.rounds=$(ROUNDS)

SOAK ?= 1h
.PHONY: soak-sglang
soak-sglang: modules .tools/envoy ## mixed load on simulated SGLang engines for SOAK, while a prefill engine is killed each minute
	@cd e2e/sglang && go test -count=1 -timeout=3h -run '^TestSoak$$' $(TESTFLAGS) . -sglang.soak=$(SOAK)

# Long forms of tests whose short forms make test runs. In the folder of a package go test shows the table that they print.
LONG = go test -count=1 -v -run

.PHONY: chaos
chaos: modules .tools/envoy ## kill, stop, restart and cut everything at random under load (SEED, CHAOSTIME, CHAOSREQUESTS)
	@cd e2e/chaos && $(LONG) '^TestChaos$$' -timeout=40m . -args -chaos.seed=$(SEED) -chaos.for=$(CHAOSTIME) -chaos.requests=$(CHAOSREQUESTS)

.PHONY: chaos-long
chaos-long: modules .tools/envoy ## the same with more faults, each by itself and then all together: the table of docs/chaos.md (SEED, CHAOSLONG, CHAOSLONGREQUESTS)
	@cd e2e/chaos && $(LONG) '^TestChaos$$' -timeout=90m . -args -chaos.wide -chaos.seed=$(SEED) -chaos.for=$(CHAOSLONG) -chaos.requests=$(CHAOSLONGREQUESTS)

.PHONY: chaos-clock
chaos-clock: modules .tools/envoy ## the same while wall clocks go an hour ahead and two back, each by itself; builds all programs anew (SEED)
	@cd e2e/chaos && $(LONG) '^TestClockSteps$$' -timeout=40m . -args -chaos.clock -chaos.seed=$(SEED)

.PHONY: rolling
rolling: modules .tools/envoy ## restart every component under load, twice
	@cd e2e/rolling && $(LONG) '^TestRolling' -race -timeout=20m . -args -rolling.rounds=2

.PHONY: overload
overload: modules .tools/envoy ## offer four times what a stack can do, for a minute, without queues and with, and take prefill away at full load
	@cd e2e/overload && $(LONG) '^(TestOverload|TestQueues|TestPrefillLost)$$' -timeout=20m . -args -overload.for=1m

.PHONY: soak
soak: modules .tools/envoy ## run a stack that looks for data races at half load, and see whether anything grows (SOAKTIME)
	@cd e2e/rolling && $(LONG) '^TestSoak$$' -timeout=60m . -args -soak.for=$(SOAKTIME)

.PHONY: batch
batch: modules ## run batches of a million lines, and kill the batch server again and again (BATCHLINES, BATCHKILLS)
	@cd e2e/batch && $(LONG) '^(TestKilled|TestManyLines)$$' -timeout=60m . -args -batch.lines=$(BATCHLINES) -batch.kills=$(BATCHKILLS)

INTERFERENCE ?= 30s
.PHONY: batch-interference
batch-interference: modules .tools/envoy ## measure what a batch does to online requests: docs/batch-interference.svg and .json, some ten minutes (INTERFERENCE)
	@cd e2e/overload && $(LONG) '^TestInterference$$' -timeout=30m . -args -interference.for=$(INTERFERENCE) -interference.write=$(CURDIR)/docs

.PHONY: batch-faults
batch-faults: modules .tools/gofakes3 ## kill random parts of a batch installation under load, and run a file of 1 GB (KILLTIME, KILLEVERY)
	@cd e2e/batch && $(LONG) '^(TestPartsKilled|TestLargeFile)$$' -timeout=60m . -args -batch.parts-for=$(KILLTIME) -batch.parts-every=$(KILLEVERY) -batch.bytes=1000000000

.PHONY: lease-vllm
lease-vllm: modules .tools/vllm .tools/tinymodel ## abandon and hold requests on real vLLM engines, with a keeper and without (LEASEREQUESTS)
	@cd e2e/serving && $(LONG) '^TestKeeperAtLength$$' -timeout=30m . -args -lease.requests=$(LEASEREQUESTS)

.PHONY: e2e
e2e: modules tools .tools/vllm .tools/tinymodel ## install the chart on a real control plane, and do what users do with it (SCENARIOS)
	@cd $(KUBE_MODULE)/cluster && go test -count=1 -v -run '^TestScenarios$$' -timeout=60m . -args -cluster -cluster.only='$(SCENARIOS)' $(E2EFLAGS)

# Every target of the Dockerfile that is an image, tagged as the chart asks for it. DOCKER is what builds and pushes: docker or
# podman.
DOCKER ?= docker
REGISTRY ?=
IMAGES := $(shell sed -n 's/^FROM base AS //p' Dockerfile)
IMAGE_TAG := $(or $(VERSION),$(shell sed -n 's/^appVersion: *//p' charts/tandem/Chart.yaml))

.PHONY: images
images: $(IMAGES:%=image-%) ## build all container images (REGISTRY, VERSION, DOCKER)

.PHONY: push
push: $(IMAGES:%=push-%) ## build all container images and push them to REGISTRY

image-%: registry
	$(DOCKER) build --target $* --build-arg VERSION=$(IMAGE_TAG) --tag $(REGISTRY)/$*:$(IMAGE_TAG) .

push-%: image-%
	$(DOCKER) push $(REGISTRY)/$*:$(IMAGE_TAG)

.PHONY: registry
registry:
	@[[ -n '$(REGISTRY)' ]] || { echo 'name the registry: make $(MAKECMDGOALS) REGISTRY=registry.example.com/tandem'; exit 2; }

.PHONY: release
release: modules .tools/helm .tools/cyclonedx-gomod ## write a release into bin/release/VERSION: programs, chart, context of the images, SBOM, checksums (VERSION)
	@VERSION='$(VERSION)' .ci/release

.PHONY: demo
demo: build ## run a whole P/D stack on this machine and prove that it works, ENGINE=sglang or trtllm on other engines than vLLM's; bin/demo.jsonl is what its picker was asked
	bin/tandem demo --engine $(ENGINE) --capture bin/demo.jsonl

.PHONY: bench
bench: build .tools/envoy ## measure sidecar, picker and the whole path side by side with baselines (BENCHFLAGS)
	bin/tandem bench --json bin/bench.json --report bin/bench.html $(BENCHFLAGS)

# The same seed gives the same bytes: git diff shows what a change of the picker, or of the model, has changed for whom.
.PHONY: replay-report
replay-report: build ## compare policies on nine workloads in virtual time: docs/replay-report.html and .json, some minutes
	bin/tandem replay --regret --json --page docs/replay-report.html > bin/replay-report.json
	mv bin/replay-report.json docs/replay-report.json

.PHONY: elastic-report
elastic-report: build ## compare autoscalers on two days of a week in virtual time: docs/elastic-report.html and .json, some minutes
	bin/tandem replay --elastic --json --page docs/elastic-report.html > bin/elastic-report.json
	mv bin/elastic-report.json docs/elastic-report.json

.PHONY: test-predict
test-predict: modules .tools/xgboost ## compare the predictions of predicted-latency-producer with XGBoost's on the same outcomes: 500 MB of disk
	@cd cmd/tandem/replay && $(LONG) '^TestPredictionsBesideXGBoost$$' -timeout=30m . -args -xgboost

.PHONY: gobench
gobench: modules ## run the benchmarks in the code (PKG, BENCH, BENCHTIME)
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

.PHONY: fuzz
fuzz: modules ## run every fuzz target for FUZZTIME, two on each core at a time
	@FUZZTIME=$(FUZZTIME) FUZZDEPS=$(FUZZDEPS) .ci/fuzz

.PHONY: lint
lint: .tools/staticcheck .tools/actionlint .tools/helm ## vet, format, staticcheck, the workflows, and the chart
	go vet ./...
	cd $(KUBE_MODULE) && go vet ./...
	go vet -tags nixl $(NIXL_TESTED) $(NIXL_USERS)
	@unformatted=$$(gofmt -l .); \
	if [[ -n $$unformatted ]]; then echo "not formatted: $$unformatted"; exit 1; fi
	.tools/staticcheck/staticcheck ./...
	cd $(KUBE_MODULE) && $(CURDIR)/.tools/staticcheck/staticcheck ./...
	.tools/staticcheck/staticcheck -tags nixl $(NIXL_TESTED) $(NIXL_USERS)
	.tools/actionlint -shellcheck= -pyflakes=
	for preset in charts/tandem/values-*.yaml; do .tools/helm lint --strict charts/tandem -f $$preset --set images.registry=localhost; done

.PHONY: docs
docs: modules ## write the generated pages anew: docs/configuration.md, tables of docs/flags.md, docs/llm-d.md and docs/protocols.md, and the differences of tandem check
	go test ./docs -run '^(TestConfiguration|TestPluginTypes|TestFlagTables|TestProtocols)$$' -update

.PHONY: clean
clean: ## remove bin/ and the links in .tools/, keep the shared cache
	rm -rf bin .tools

.PHONY: modules
modules:
	@go mod download
	@cd $(KUBE_MODULE) && go mod download

# .ci/fetch does nothing for a part that is in the cache.
.tools/%: FORCE
	@.ci/fetch $*

.PHONY: FORCE
FORCE:
