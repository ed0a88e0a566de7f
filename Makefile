# Moraine. `make` prints the targets.
SHELL := /bin/bash
GO ?= go
BIN := bin/moraine
export CGO_ENABLED ?= 0
# -race needs cgo. Each test binary waits before it ends, so that a race that another
# goroutine reports meanwhile is printed: 50 ms instead of a second, for 60 packages.
RACE_ENV := CGO_ENABLED=1 GORACE="$(strip atexit_sleep_ms=50 $(GORACE))"
# Test binaries without tables for debuggers link in half the time, and stacks stay readable;
# `make check` runs go vet itself.
TEST_FLAGS := -race -ldflags='-s -w' -vet=off
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/morainefs/moraine/cmd/moraine/internal/cli.Version=$(VERSION)
# How long one package's tests may take, beside three others. The whole of `make test`
# takes 14.5 minutes on 2 cores with a warm build cache.
TEST_TIMEOUT ?= 45m
# How many packages are tested at once: much of what they do is waiting, for elections,
# leases and processes.
TEST_PACKAGES_AT_ONCE ?= 4

# need: for a TARGET, TOOLS and venv of python3 are there, or are installed as
# Debian PACKAGES.
need = @{ [ "$$(command -v $(2) | wc -l)" = "$(words $(2))" ] && python3 -c 'import ensurepip, venv' 2>/dev/null; } || { \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq $(3) >/dev/null; \
	  else echo '$(1): install first: $(2), and venv of python3' >&2; exit 1; fi; }

.DEFAULT_GOAL := help
.PHONY: help build release demo demo-tools setup tools test test-long histories check staticcheck generated bench cluster generate fuzz clean

help: ## Print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build the static binary bin/moraine
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/moraine

release: ## Build static binaries for linux/amd64 and linux/arm64 under bin/
	GOOS=linux GOARCH=amd64 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/moraine-linux-amd64 ./cmd/moraine
	GOOS=linux GOARCH=arm64 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/moraine-linux-arm64 ./cmd/moraine

demo: build demo-tools ## The main job: save, kill, restore, on a cluster of processes on this machine
	$(BIN) demo --mode crc --venv .cache/demo-python

# What the demo needs beside Go: a mount, and a Python that reads from it.
demo-tools:
	$(call need,make demo,python3 fusermount3,python3 python3-venv fuse3)

cluster: build ## Start a cluster on this machine and keep it until Ctrl-C
	$(BIN) dev-cluster --mode crc

# What the tests need beside Go: a C compiler for -race, mkfs.ext4, and what works
# on a mount.
TEST_TOOLS := $(CC) mkfs.ext4 fusermount3 git fio setfattr setfacl rsync python3
TEST_PACKAGES := gcc libc6-dev e2fsprogs fuse3 git fio attr acl rsync python3 python3-venv
# The S3 clients of Python, of pinned versions, apart from the system's packages.
PYTHON_ENV := .cache/python

setup: tools $(PYTHON_ENV)/made ## Install what the tests need beside Go (a C compiler, git, fio, aws-cli ...), on Debian as root

tools:
	$(call need,make setup,$(TEST_TOOLS),$(TEST_PACKAGES))

$(PYTHON_ENV)/made: integration/testdata/requirements.txt | tools
	@rm -rf $(PYTHON_ENV) && python3 -m venv $(PYTHON_ENV)
	@$(PYTHON_ENV)/bin/pip install --quiet --disable-pip-version-check -r $< && touch $@

test: setup ## All tests a newcomer should trust, with the race detector
	$(RACE_ENV) $(GO) test $(TEST_FLAGS) -p $(TEST_PACKAGES_AT_ONCE) -timeout $(TEST_TIMEOUT) ./...

test-long: setup ## The long ones too: kill -9 rounds, power cuts, fault schedules in full number, mutants, benchmarks
	MORAINE_TEST_LONG=1 $(RACE_ENV) $(GO) test $(TEST_FLAGS) -timeout 80m ./...

# Without the race detector, which `make test-long` has, so that a history takes a
# fraction of the time. What a failure says is whole in the file; the terminal gets
# the seeds.
histories: ## 500 histories of the metadata service checked with porcupine, those of leases and of mutants; prints their seeds
	@mkdir -p .cache
	@set -o pipefail; MORAINE_TEST_LONG=1 $(GO) test -v -count=1 -timeout 80m ./integration/histories 2>&1 | tee .cache/histories.log | \
	  grep --line-buffered -E 'seeds? [0-9]|^ *(=== RUN|---|ok|FAIL|panic)' || { echo 'make histories: what was said is in .cache/histories.log' >&2; exit 1; }

check: ## The whole gate: format, vet on both architectures, staticcheck, generated code, tests (arrows, promises and caps among them)
	@test -z "$$(gofmt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$'))" || { echo 'gofmt: run gofmt -w on:'; gofmt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$'); exit 1; }
	$(GO) vet ./...
	GOARCH=arm64 $(GO) vet ./...
	@$(MAKE) --no-print-directory staticcheck generated
	$(MAKE) test

# A module of its own, so that staticcheck decides no version of the product's.
staticcheck: ## Look for mistakes and for code that nothing uses (staticcheck.conf)
	"$$($(GO) -C internal/tools tool -n staticcheck)" ./...

generated: ## Check that the generated Go code is what the .proto files give (if protoc is there)
	@GO=$(GO) internal/tools/generated.sh

bench: build ## Every benchmark, one JSON object a line
	$(BIN) bench all --json

generate: ## Make the generated Go code again (needs protoc)
	$(GO) build -o bin/protoc-gen-moraine ./internal/protocgen
	PATH="$(CURDIR)/bin:$$PATH" $(GO) generate ./...

fuzz: ## Fuzz every decoder for FUZZTIME (default 20s) each
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p 2>/dev/null | grep ^Fuzz); do \
	  echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $${FUZZTIME:-20s} $$p || exit 1; done; done

clean: ## Remove what was built
	rm -rf bin
