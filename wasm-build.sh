#!/usr/bin/env bash
# Builds the filter, or another proxy-wasm guest of this repository, into one WebAssembly module.
#
#   ./wasm-build.sh [-o FILE] [--keep-all-exports] [PACKAGE DIRECTORY]
#
#   -o FILE             where to write the module (default: build/weir.wasm)
#   --keep-all-exports  do not strip the callbacks that the filter does not use: for test guests
#   --compiler-only     make sure that there is a compiler, and stop
#   --build-id          print by what `weir get nodes` shows this build of the filter, and stop
#   PACKAGE DIRECTORY   default: ./filter
#
# TinyGo is built once, from the Go modules that tools/tinygo pins and with the change of its runtime
# that is there too, into the cache folder: ${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}. A
# TinyGo on the PATH is not used.
set -euo pipefail

say() { printf '>> %s\n' "$*" >&2; }
die() { printf 'wasm-build.sh: %s\n' "$*" >&2; exit 1; }

output=build/weir.wasm
package=./filter
strip=yes
compiler_only=no
id_only=no
while (($#)); do
	case $1 in
	-o) output=${2:?-o needs a file name}; shift 2 ;;
	--keep-all-exports) strip=no; shift ;;
	--compiler-only) compiler_only=yes; shift ;;
	--build-id) id_only=yes; shift ;;
	-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
	-*) die "unknown option $1, see --help" ;;
	*) package=$1; shift ;;
	esac
done

output=$(realpath -m -- "$output")
package=$(realpath -m -- "$package")
repo=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cache=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}
# A build is known by its sources, so that it is the same from a clone, an archive or a copy, and of two commits that differ elsewhere.
build_id() {
	(cd "$repo" && find filter shared tools/tinygo go.mod go.sum wasm-build.sh -type f \
		\( -name '*.go' ! -name '*_test.go' -o -name 'go.*' -o -name '*.sh' -o -name '*.sed' \) -print0 |
		LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-8)
}
if [[ $id_only == yes ]]; then
	build_id
	exit 0
fi
[[ $compiler_only == yes || -d $package ]] || die "there is no package directory $package"
command -v go >/dev/null || die "Go is not on the PATH; install Go 1.26 or newer"

# change_runtime changes the runtime below the sources $1 as tools/tinygo/runtime.sed says.
change_runtime() {
	local file=$1/runtime/runtime_tinygowasm.go
	cp "$file" "$file.before"
	sed -i -f "$repo/tools/tinygo/runtime.sed" "$file"
	! cmp -s "$file" "$file.before" || die "tools/tinygo/runtime.sed does not fit TinyGo's $file"
	rm "$file.before"
}

# build_tinygo makes $root: TinyGo's command with its standard library beside it, which is what it takes for its own root.
# A lock and a rename keep a second build, or one that was interrupted, from seeing half of it.
build_tinygo() {
	local pin=$repo/tools/tinygo source
	"$repo/tools/setup.sh" build
	mkdir -p "$cache"
	exec 9>"$cache/tinygo.lock"
	flock 9
	if [[ ! -x $root/bin/tinygo ]]; then
		say "building TinyGo $version from source, once: about a minute"
		partial=$(mktemp -d "$cache/tinygo.partial.XXXXXX")
		trap 'rm -rf "$partial"' EXIT
		go mod download -C "$pin" github.com/tinygo-org/tinygo
		source=$(go list -C "$pin" -m -f '{{.Dir}}' github.com/tinygo-org/tinygo)
		cp -R "$source/src" "$source/targets" "$partial/"
		chmod -R u+w "$partial"
		# The module has no git submodules, and src/net is one; the compiler only wants the folder to be there.
		mkdir -p "$partial/src/net" "$partial/bin"
		cp "$pin/wasip1-debian.json" "$partial/targets/"
		change_runtime "$partial/src"
		CGO_ENABLED=1 go build -C "$pin" -buildvcs=false -tags llvm19 -o "$partial/bin/tinygo" github.com/tinygo-org/tinygo
		rm -rf "$root"
		mv "$partial" "$root"
		say "TinyGo $version is in $root"
	fi
	exec 9>&-
}

version=$(sed -n 's/^require github.com\/tinygo-org\/tinygo //p' "$repo/tools/tinygo/go.mod")
# A changed pin, target or runtime makes another root.
changes=$(cat "$repo"/tools/tinygo/{go.sum,wasip1-debian.json,runtime.sed} | sha256sum)
root=$cache/tinygo-$version-${changes:0:12}
[[ -x $root/bin/tinygo ]] || build_tinygo
tinygo=(env "TINYGOROOT=$root" "$root/bin/tinygo")
[[ $compiler_only == no ]] || exit 0

mkdir -p "$(dirname -- "$output")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# -tags=custommalloc leaves out TinyGo's exported malloc, which pins whatever the host returns and never frees it.
# -buildmode=c-shared exports _initialize; the default _start ends in an exit, which Envoy forbids.
# -opt=1, not more: from 2 on LLVM marks calls as tail calls, which must not read their caller's stack, before TinyGo adds the
# stack slots in which the collector finds local pointers. The linker then drops what is stored there, and a collection frees
# memory in use. It shows at once if the collector runs at every allocation; in the field it is a damaged header in a million.
# Memory starts at half a megabyte because TinyGo doubles it when a third of it is not free: so it is 16 MB with the largest policy
# sets, where from the smallest that holds the data it would be 25.
flags=(-target="$root/targets/wasip1-debian.json" -buildmode=c-shared -scheduler=none -gc=precise -opt=1 -no-debug -tags=custommalloc
	"-ldflags=-X github.com/weir-proxy/weir/filter/internal/envoy/plugin.build=$(build_id) -extldflags=--initial-memory=524288")
built=yes
(cd "$package" && "${tinygo[@]}" build "${flags[@]}" -o "$work/built.wasm" .) 2>"$work/log" || built=no
# The compiler's clang warns about target features it does not know; the rest of what it says is shown.
grep -v 'is not a recognized feature' "$work/log" >&2 || true
[[ $built == yes ]] || die "TinyGo could not build $package"

go build -C "$repo" -buildvcs=false -o "$work/wasmgate" ./tools/wasmgate
if [[ $strip == yes ]]; then
	"$work/wasmgate" strip -o "$work/stripped.wasm" "$work/built.wasm"
	# Unlike LLVM wasm-opt works on the finished module, in
	# which the collector's stack slots are stores like others, so it may optimise: that is two in a hundred bytes. Small offsets go
	# into loads and stores: the first KB, which a sum that wraps around would reach, is the end of the stack, and no data.
	"$("${tinygo[@]}" env WASMOPT)" -Oz --low-memory-unused --remove-unused-module-elements -o "$work/final.wasm" "$work/stripped.wasm"
else
	cp "$work/built.wasm" "$work/final.wasm"
fi
summary=$("$work/wasmgate" check "$work/final.wasm")
mv "$work/final.wasm" "$output"
say "${summary/"$work/final.wasm"/"$output"}"
