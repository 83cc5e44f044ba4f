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
FUZZTIME ?= 10s

# Tools are kept per user and version, so that every checkout shares them. A
# linter must be built by the Go it is to understand, hence both versions.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tandem
STATICCHECK_VERSION := v0.8.2
STATICCHECK := $(CACHE)/staticcheck-$(STATICCHECK_VERSION)-$(shell go env GOVERSION)

.PHONY: help
help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build every command into bin/, static
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ $(COMMANDS)

.PHONY: test
test: modules ## run all tests with the race detector
	go test -race $(PKG)

.PHONY: demo
demo: build ## run a whole P/D stack on this machine and prove that it works
	bin/tandem demo

.PHONY: bench
bench: modules ## run the benchmarks (PKG, BENCH, BENCHTIME)
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

.PHONY: fuzz
fuzz: modules ## run every fuzz target for FUZZTIME
	@{ grep -roE '^func Fuzz\w+' --include='*_test.go' --exclude-dir='.?*' . || true; } | sort | while IFS=: read -r file func; do \
		echo "fuzz $$(dirname $$file) $${func#func }"; \
		go test -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZTIME) ./$$(dirname $$file); \
	done

.PHONY: lint
lint: .tools/staticcheck ## vet, format, staticcheck
	go vet ./... && go vet -tags vllm ./e2e
	@unformatted=$$(gofmt -l .); \
	if [[ -n $$unformatted ]]; then echo "not formatted: $$unformatted"; exit 1; fi
	.tools/staticcheck/staticcheck ./...

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
