# Weir's tasks. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Where TinyGo, Envoy and the like are kept between builds. Tests find Envoy as $WEIR_CACHE/bin/envoy.
WEIR_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/weir
export WEIR_CACHE

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# The packages that need the built filter, Redis or Envoy, and those that run it on a WebAssembly engine written in Go,
# which the race detector slows down beyond use.
# test/mesh and test/chart need what takes half an hour to build: `make test-mesh`, `make test-chart`;
# test/stores runs tests of other packages again: `make test-stores`; test/install and test/compose need root:
# `make test-install`, `make test-compose`.
END_TO_END = $$(go list ./test/... | grep -v -E '/test/(mesh|chart|stores|install|compose|wasm|simulation)$$')
WASM_HEAVY := /envoytest(/|$$)

announce = @printf '\n== %s\n' "$(1)"
light_packages = $$(go list ./... | grep -v -E '/weir/test/|$(WASM_HEAVY)')
# The race detector makes tests several times slower, so it runs those that it can find something in,
# and these run under it alone: the packages below in which a file starts goroutines or a server. Code
# in shared/ and filter/ starts none, which tools/rules/rules_test.go sees to; tests of what workers share
# do. The packages of `without` start processes and servers for these.
with_goroutines := \/weir\/(client|controlplane|tools)(\/|$$)|\/filter\/internal\/base\/(bucketstore|shareddata)$$
without := \/tools\/rules$$|\/internal\/cli(\/|$$)
starts := ^[[:space:]]*go [a-z]|\.Go\(|httptest\.|net\.Listen|synctest\.|\.Parallel\(
# Packages that take minutes start first, the longest before the others, so that none of them runs
# alone at the end.
longest := \/store\/redisstore$$
minutes := \/weir\/client$$|\/internal\/(app|serve\/(api|rls)|store\/localstore)$$
race_packages = $$(go list -f '{{.ImportPath}} {{.Dir}}' ./... | awk '$$1 ~ /$(with_goroutines)/ && $$1 !~ /$(without)/' | \
	while read -r package dir; do if grep -qE '$(starts)' "$$dir"/*.go; then echo "$$package"; fi; done | \
	awk '{print (/$(longest)/ ? 0 : /$(minutes)/ ? 1 : 2), $$0}' | sort -s -n -k 1,1 | cut -d ' ' -f 2)
plain_packages = $$(go list ./... | grep -v '/weir/test/' | grep -vxFf <(printf '%s\n' $(race_packages)))

.PHONY: help
help: ## list the tasks
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what this machine lacks (Debian 12; asks for root only if something is missing)
	@command -v go >/dev/null || { echo "Go is not on the PATH; install Go 1.26 or newer from go.dev" >&2; exit 1; }
	@tools/setup.sh

.PHONY: wasm
wasm: ## build the filter: build/weir.wasm
	$(call announce,building build/weir.wasm)
	@./wasm-build.sh -o build/weir.wasm

.PHONY: build
build: wasm ## build the filter and the control plane: build/weir.wasm and build/weir
	$(call announce,building build/weir)
	@go build -buildvcs=false -trimpath -ldflags '-X main.version=$(VERSION)' -o build/weir .

.PHONY: native
native: wasm ## build the native host of the filter, a dynamic module of Envoy: build/libweir.so
	$(call announce,building build/libweir.so)
	@filter/native/build.sh build/weir.wasm

# The native host with faults on demand, with and without the sanitizer of undefined behaviour.
.PHONY: native-faults
native-faults: native
	@filter/native/build.sh --faults -o build/faults/libweir.so build/weir.wasm
	@filter/native/build.sh --faults --sanitize -o build/sanitized/libweir.so build/weir.wasm

.PHONY: generate
generate: ## write the server's interface and docs/reference/fields.md anew from api/openapi.yaml; tests fail while they are old
	$(call announce,generating controlplane/internal/serve/api/gen and docs/reference/fields.md from api/openapi.yaml)
	@go generate ./controlplane/internal/serve/api/gen ./controlplane/internal/rules/policydoc/reference

.PHONY: console
console: ## build the console, which is part of build/weir, from console/; tests fail while it is old
	@tools/setup.sh console
	$(call announce,building the console)
	@console/build.sh
	@console/notices.sh

KEEP ?=

# WEIR_HOST=native runs the filter as a dynamic module, here and in all tests with Envoy.
.PHONY: run
run: build $(if $(filter native,$(WEIR_HOST)),native) ## run everything on this machine until Ctrl-C: Envoy with the filter, control plane, upstream
	@tools/setup.sh envoy
	@WEIR_DEMO_REDIS_URL="$${WEIR_REDIS_URL-}" exec build/weir demo --envoy '$(WEIR_CACHE)/bin/envoy' \
		--dir "$${WEIR_RUN_DIR:-.run}" $(if $(filter 1,$(KEEP)),--keep) \
		$${WEIR_TOKENS_FILE:+--tokens-file "$$WEIR_TOKENS_FILE"}

.PHONY: test
test: ## every test, with a real Redis and a real Envoy
	@MAKE='$(MAKE)' tools/test.sh

# Tests must not depend on a machine that does nothing else: bounds hold, and goodput follows from
# what was offered. A round takes up to an hour.
ROUNDS ?= 1
.PHONY: test-busy
test-busy: ## `make test` beside as many busy loops as there are processors, ROUNDS times
	@loops=(); trap 'kill "$${loops[@]}"' EXIT; \
	for (( i = 0; i < $$(nproc); i++ )); do while :; do :; done & loops+=($$!); done; \
	for (( round = 1; round <= $(ROUNDS); round++ )); do \
	printf '\n== round %s of $(ROUNDS), beside %s busy loops\n' "$$round" "$$(nproc)"; \
	go clean -testcache; WEIR_TEST_NICE=0 $(MAKE) test; done

.PHONY: check
check: fmt vet lint ## the fast part of `make test`: format, vet, staticcheck, unit tests
	$(call announce,unit tests)
	@go test $(light_packages)

.PHONY: fmt
fmt: ## fail if a Go file is not formatted
	$(call announce,gofmt)
	@files=$$(gofmt -l .); [[ -z $$files ]] || { printf 'not formatted, run gofmt -w:\n%s\n' "$$files" >&2; exit 1; }

# These modules of their own import packages of the main one.
.PHONY: vet
vet: ## go vet
	$(call announce,go vet)
	@go vet ./...
	@for module in test/console tools/images; do go -C "$$module" vet ./...; done

# Not a requirement of go.mod: nothing of the module is built with it.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

.PHONY: lint
lint: ## staticcheck for the code and actionlint for the workflows, at pinned versions
	$(call announce,staticcheck)
	@go run $(STATICCHECK) ./...
	$(call announce,actionlint)
	@go run $(ACTIONLINT) .github/workflows/*.yml

# Tests that take minutes under the race detector, and show it nothing that shorter tests do not, are in
# files with this constraint, and so are tests of speed. They run with the unit tests.
without_detector = $$(grep -rl --include='*_test.go' '^//go:build !race$$' client controlplane filter tools)

# Each benchmark runs once, so that none is broken. The flags go to the test programs themselves:
# with -bench the go command runs one package after the other. `go vet` has run before.
ONCE := -args -test.bench . -test.benchtime 1x

.PHONY: test-unit
test-unit: ## all tests that need no Envoy, and each benchmark once; those of test-race run there
	$(call announce,tests)
	@go test -timeout 30m -vet=off $(plain_packages) $(ONCE)
	@files=$(without_detector); names=$$(sed -n 's/^func \(Test[^(]*\)(.*/\1/p' $$files | paste -s -d '|'); \
	go test -count 1 -timeout 30m -vet=off -run "^($$names)$$" $$(dirname $$files | sort -u | sed 's,^,./,')

# The race detector comes with checks of pointers. A test damages bbolt's file at random, and bbolt
# finds that out by reading beyond a page, which ends the process there.
BBOLT := go.etcd.io/bbolt/...

# The tests of these packages wait for processes more than they work, so more of them run at once
# than there are processors.
AT_ONCE = $$(( $$(nproc) * 3 / 2 ))

.PHONY: test-race
test-race: ## the tests of packages with goroutines, under the race detector
	$(call announce,tests under the race detector)
	@CGO_ENABLED=1 go test -p $(AT_ONCE) -timeout 30m -vet=off -race -gcflags='$(BBOLT)=-d=checkptr=0' $(race_packages) $(ONCE)

# In the filter an int has 32 bits; this finds arithmetic that only holds with 64.
.PHONY: test-386
test-386: ## the shared packages with 32-bit integers
	$(call announce,shared packages with 32-bit integers)
	@GOARCH=386 CGO_ENABLED=0 go test -timeout 30m -vet=off ./shared/...

.PHONY: test-virtual
test-virtual: ## the built filter on wazero and whole fleets, in virtual time; needs `make build`
	$(call announce,tests in virtual time)
	@go test -count 1 -timeout 40m ./test/wasm ./test/simulation

.PHONY: test-e2e
test-e2e: ## end-to-end tests with Envoy and Redis; needs `make setup build`
	$(call announce,end-to-end tests with Envoy and Redis)
	@go test -count 1 -timeout 40m $(END_TO_END)

# Dynamic modules as the native host needs them are in Envoy since 1.38.
.PHONY: test-native
test-native: build native-faults ## the end-to-end tests in full, the benchmark's contestants, and the matrix of Envoys with the native host of the filter; needs `make setup`
	@tools/setup.sh envoy envoys redis
	$(call announce,the native host: a second build elsewhere must be the same)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; cp -R filter tools build/weir.wasm "$$dir/"; \
	WEIR_CACHE=$$dir/cache "$$dir/filter/native/build.sh" -o "$$dir/libweir.so" "$$dir/weir.wasm"; \
	cmp build/libweir.so "$$dir/libweir.so"
	$(call announce,the native host: faults and reloads)
	@go test -count 1 -timeout 30m ./test/native -full
	$(call announce,the native host: end-to-end tests)
	@WEIR_HOST=native go test -count 1 -timeout 60m ./test/e2e -keys 1000000 -examples 120
	$(call announce,the benchmark of both hosts and their peers)
	@go vet -tags contestants ./test/figures/bench
	@go test -count 1 -timeout 30m -tags contestants ./test/figures/bench
	$(call announce,the native host in each Envoy that has it)
	@WEIR_HOST=native go test -count 1 -v ./test/matrix -all -write

.PHONY: test-clients
test-clients: ## clients of npm, PyPI and Go, and Express, as their makers ship them, against an Envoy; needs `make setup build`
	@tools/setup.sh envoy redis field
	$(call announce,clients as their makers ship them)
	@go vet -tags clients ./test/e2e
	@go test -count 1 -timeout 15m -tags clients -run '^Test(ClientsOfTheFieldPass|ExpressRoutes)' ./test/e2e

# Not part of `make test`, which runs these tests with Debian's Redis alone.
.PHONY: test-stores
test-stores: build ## the tests of the store with further servers of Redis and Valkey; writes the tables of docs/run/compatibility.md
	@tools/setup.sh clients redis stores
	$(call announce,the store on each server)
	@go test -count 1 -timeout 60m -v ./test/stores -write

# Not part of `make test`: the first time it builds a Kubernetes API server, for a quarter of an hour.
.PHONY: test-chart
test-chart: test-images ## the Helm chart and docs/run/kubernetes.md against a real API server of Kubernetes, and the images
	@tools/setup.sh envoy kube
	$(call announce,the chart in a Kubernetes API)
	@go test -count 1 -timeout 20m ./test/chart

# Not part of `make test`: the first time it builds Kubernetes, for half an hour, and containers need
# root. It compiles the control plane as `make images` does, for this machine alone.
.PHONY: test-pods
test-pods: build native ## the chart's own pods, run by a kubelet, also while their store is away, and Envoy Gateway's; needs root
	@tools/setup.sh envoy redis kube pods mesh
	$(call announce,the chart's pods under a kubelet)
	@go -C tools/images run . -version test -platforms linux/$$(go env GOARCH) -out ../../build/pod-images
	@go vet -tags pods ./test/e2e ./test/mesh
	@go test -count 1 -timeout 20m -v -tags pods -exec "$(CURDIR)/test/support/kubetest/apart.sh" -run '^TestPods' ./test/e2e
	$(call announce,the pods of Envoy Gateway under a kubelet)
	@go test -count 1 -timeout 20m -v -tags pods -exec "$(CURDIR)/test/support/kubetest/apart.sh" -run '^TestPods' ./test/mesh

# Not part of `make test`: the first time it builds Compose, and TinyGo in a container, and containers need
# root. The images are built in the machine's network. Their containers run in a network of their own.
.PHONY: test-compose
test-compose: build ## Dockerfile and docker-compose.yml with Docker's engine and Compose, also while each container dies; needs root
	@tools/setup.sh envoy compose
	$(call announce,the images of the Dockerfile)
	@go test -count 1 -timeout 60m -v -run '^TestImages' ./test/compose
	$(call announce,the services of docker-compose.yml)
	@go test -count 1 -timeout 20m -v -exec "$(CURDIR)/test/support/kubetest/apart.sh" -run '^TestServices' ./test/compose

.PHONY: kustomize
kustomize: ## write deploy/kustomize/weir.yaml anew from the chart
	@tools/setup.sh kube
	@go test -count 1 -run TestTheBaseForKustomizeIsTheChart ./test/chart -write

# Not part of `make test`: the first time it builds a Kubernetes API server, istiod and Envoy Gateway,
# for half an hour.
.PHONY: test-mesh
test-mesh: build native test-chart ## both hosts of the filter and the control plane under Istio and Envoy Gateway, with a real API server of Kubernetes
	@tools/setup.sh envoy kube mesh
	$(call announce,tests under Istio and Envoy Gateway)
	@go test -count 1 -timeout 30m ./test/mesh
	$(call announce,the native host under Istio and Envoy Gateway)
	@WEIR_HOST=native go test -count 1 -timeout 30m ./test/mesh

.PHONY: site
site: ## the manual as a static site with search, in build/site; fails at a link that leads nowhere
	@tools/setup.sh site
	$(call announce,building the manual)
	@rm -rf build/site && go run ./tools/site . build/pages
	@$(WEIR_CACHE)/bin/sphinx-build -q -W --keep-going -b html -c tools/site build/pages build/site
	@printf '>> build/site/index.html\n' >&2

# Not part of `make test`: Chromium, Node and their packages are half a gigabyte to install.
.PHONY: test-console
test-console: build site ## the console and the manual in a real browser, against an Envoy and load; and that its sources build its files
	@tools/setup.sh envoy console
	$(call announce,the console in a browser)
	@cd test/console && go vet ./... && go test -count 1 -timeout 20m ./...

.PHONY: screenshots
screenshots: build ## the pictures of docs/night/console.md, anew
	@tools/setup.sh envoy console
	$(call announce,taking pictures of the console)
	@cd test/console && go run ./shots -load 2m

.PHONY: console-speed
console-speed: build ## how soon the console shows its screens with ten thousand policies and a thousand nodes
	@tools/setup.sh envoy console
	$(call announce,measuring the console)
	@cd test/console && go run ./speed

QUESTIONS ?=

.PHONY: console-questions
console-questions: build ## how long the console takes to answer an incident's questions, under load; QUESTIONS=-h lists what else there is
	@tools/setup.sh envoy console
	$(call announce,asking the console)
	@cd test/console && go run ./questions $(QUESTIONS)

SEEDS ?= 20000
FIRST ?= 1

.PHONY: simulate
simulate: ## run fleets in virtual time, many more than `make test` does: SEEDS of them from FIRST
	$(call announce,simulating $(SEEDS) fleets)
	@GOGC=400 go test -count 1 -timeout 0 -v -run 'TestBoundsHold|TestSeedIsOneRun' ./test/simulation -seeds $(SEEDS) -first $(FIRST)

# The short form of the same tests is part of `make test`.
.PHONY: chaos
chaos: setup build ## break processes, connections and clocks under load, for half an hour
	$(call announce,breaking processes connections and clocks)
	@go test -count 1 -timeout 0 -v -run '^TestChaos' ./test/e2e -long

# The short form of the same game, of two fixed seeds, is part of `make test`.
CHAOS ?= 1h
SEED ?= 0

.PHONY: test-chaos
test-chaos: setup build ## draw faults, changes and pushes at random for CHAOS, an hour, and check every bound; SEED=N plays one again
	$(call announce,drawing faults for $(CHAOS))
	@go test -count 1 -timeout 0 -v -run '^TestChaosGame$$' ./test/e2e -game '$(CHAOS)' -seed '$(SEED)'

.PHONY: million
million: setup build ## measure the control plane with a million consumers and ten thousand policies in a Redis
	$(call announce,a million consumers and ten thousand policies)
	@go test -count 1 -timeout 0 -v ./test/figures/million -full

# Both are the same for one commit wherever they are built.
REGISTRY ?=
KEY ?=
images_of = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) go -C tools/images run . -version '$(VERSION)' \
	$(if $(KEY),-key '$(abspath $(KEY))') -native ../../build/native

.PHONY: native-all
native-all: wasm ## build the native host for both architectures, below build/native; needs x86-64
	@for arch in amd64 arm64; do filter/native/build.sh --arch $$arch -o build/native/$$arch/libweir.so build/weir.wasm; done

.PHONY: images
images: native-all ## the images as an OCI layout in build/images, without a container engine; REGISTRY=HOST/PATH pushes, KEY=FILE signs them
	$(call announce,building the images)
	@$(images_of) -out ../../build/images $(if $(REGISTRY),-push '$(REGISTRY)')

.PHONY: release
release: native-all ## what a release consists of, in build/release: archives, packages, filter, chart, clients, SBOMs, checksums; KEY=FILE signs them
	@[ -z "$(KEY)$${COSIGN_PRIVATE_KEY:-}" ] || [ -z "$$(git status --porcelain --untracked-files=no)" ] || { \
		printf 'cannot sign a release: its provenance names a commit, and these files differ from it; commit them, or build without a key:\n' >&2; \
		git status --short --untracked-files=no >&2; exit 1; }
	@tools/setup.sh clients
	$(call announce,building a release)
	@$(images_of) -out ../../build/release -release -commit "$$(git rev-parse HEAD)"

# Not part of `make test`: it compiles the control plane for two platforms.
.PHONY: test-images
test-images: native-all ## push the images to a registry, pull and run them; two builds of images and release must be the same
	@tools/setup.sh clients
	$(call announce,images)
	@go -C tools/images vet .
	@go -C tools/images test -count 1 -timeout 20m .

# Not part of `make test`: it makes roots of Debian, which needs root, and installs from the network.
.PHONY: test-install
test-install: wasm ## install a release on an empty Debian 12 and 13, from nothing to the first 429, and the clients; needs root
	@tools/setup.sh clients install
	$(call announce,installing a release)
	@go -C tools/images build -o ../../build/release-builder .
	@go test -count 1 -timeout 40m -v ./test/install

.PHONY: reproducible
reproducible: ## build the filter again, elsewhere and without the compiler's cache: it must come out the same
	$(call announce,building the filter a second time)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	cp -R go.mod go.sum wasm-build.sh filter shared tools "$$dir/"; \
	GOCACHE=$$(go env GOCACHE) XDG_CACHE_HOME=$$dir/cache "$$dir/wasm-build.sh" -o "$$dir/weir.wasm" "$$dir/filter"; \
	sha256sum build/weir.wasm "$$dir/weir.wasm"; \
	cmp build/weir.wasm "$$dir/weir.wasm"

.PHONY: matrix
matrix: build ## run the filter in each Envoy that tools/envoys.txt pins, and write the table of docs/run/compatibility.md
	@tools/setup.sh envoy envoys redis
	$(call announce,the filter in each Envoy)
	@go test -count 1 -v ./test/matrix -all -write

# Not part of `make test`: qemu takes many instructions for each of arm64, and the image is compiled.
.PHONY: test-arm64
test-arm64: build ## the filter in Envoy for arm64, and the image's control plane, under qemu; writes a table of docs/run/compatibility.md
	@tools/setup.sh envoy redis arm64
	$(call announce,Envoy and the control plane for arm64)
	@go -C tools/images run . -version test -platforms linux/arm64 -out ../../build/arm64-images
	@filter/native/build.sh --arch arm64 -o build/arm64/libweir.so build/weir.wasm
	@filter/native/build.sh --arch arm64 --faults -o build/arm64/faults/libweir.so build/weir.wasm
	@go vet -tags emulated ./test/matrix
	@go test -count 1 -timeout 20m -v -tags emulated -run '^TestOnArm64' ./test/matrix -write
	@WEIR_HOST=native go test -count 1 -timeout 20m -v -tags emulated -run '^TestOnArm64TheFilterRuns$$' ./test/matrix

# Not part of `make test`: it takes some twenty minutes, on a machine that does nothing else. `make test-native` tries it out.
BENCH ?=

.PHONY: bench
bench: build native ## measure Weir beside its peers; BENCH=-short tries it out, BENCH=-h lists what else there is
	@tools/setup.sh envoy redis bench
	$(call announce,measuring)
	@go build -buildvcs=false -ldflags '-X main.version=$(VERSION)' -o build/bench ./test/figures/bench
	@build/bench $(BENCH)

# Not part of `make test` either. Its tests try it out.
MODULE ?=

.PHONY: module-cost
module-cost: build native ## measure what the filter's module costs an Envoy's start and memory; MODULE=-h lists what else there is
	@tools/setup.sh envoy
	$(call announce,starting Envoys)
	@go build -buildvcs=false -ldflags '-X main.version=$(VERSION)' -o build/module-cost ./test/figures/modulecost
	@build/module-cost $(MODULE)

# `make test` runs each of them once.
COUNT ?= 10
BASE ?=
ONLY ?= .
TIME ?= 100ms

.PHONY: microbench
microbench: ## measure the parts, COUNT times each, some three minutes; BASE=REVISION compares with that, ONLY=REGEXP picks some
	@tools/setup.sh redis
	$(call announce,measuring the parts)
	@tools/microbench.sh '$(COUNT)' '$(BASE)' '$(ONLY)' '$(TIME)'

# Not part of `make test` either. Its tests try it out.
SCALE ?=

.PHONY: scale
scale: build ## measure how many nodes and keys one control plane and one Redis serve; SCALE=-h lists what else there is
	@tools/setup.sh redis
	$(call announce,measuring with simulated nodes)
	@go build -buildvcs=false -ldflags '-X main.version=$(VERSION)' -o build/scale ./test/figures/scale
	@build/scale $(SCALE)

OVERLOAD ?= -docs docs

.PHONY: overload
overload: build ## plot what becomes of a service that is asked for three times what it can give; OVERLOAD=-h lists what else there is
	$(call announce,overloading a service behind Envoy)
	@go build -buildvcs=false -o build/overload ./test/figures/overload
	@build/overload $(OVERLOAD)

# The short form of the same test, with 400 000 keys, is part of `make test`.
KEYS ?= 10000000

.PHONY: flood
flood: setup build ## send KEYS requests with as many different keys through a real Envoy: ten minutes for ten million
	$(call announce,$(KEYS) requests with as many keys)
	@go test -count 1 -timeout 0 -v -run '^TestManyKeysLeaveMemoryFlat$$' ./test/e2e -keys $(KEYS)

# Not part of `make test`: it takes some minutes.
.PHONY: mutants
mutants: ## change the arithmetic of limits at one place at a time: a test must notice each change; ONLY=REGEXP makes some
	$(call announce,the tests of shared/quota against its code with one change each)
	@go run ./tools/mutate -only '$(ONLY)' ./shared/quota ./shared/lease

# Each suite installs its own engines the first time, which takes hours in all.
SUITES ?= .*

.PHONY: test-everything
test-everything: ## run each suite, for hours, and write docs/measured/tested.md; SUITES=REGEXP runs some
	$(call announce,every suite)
	@go run ./test/figures/suites -only '$(SUITES)' -version '$(VERSION)'

.PHONY: clean
clean: ## remove build/ and the state of `make run`; the cache stays
	rm -rf build .run
