#!/usr/bin/env bash
# Builds the native host of the filter: the module's code, which wasm2c translates to C, and the C
# files here become one dynamic module of Envoy.
#
#   filter/native/build.sh [-o FILE] [--arch ARCH] [--sanitize] [--debug] [--faults] [--id] [WASM]
#
#   -o FILE      where to write the dynamic module (default: lib and the name of WASM, in its folder)
#   --arch ARCH  amd64 or arm64 (default: this machine's)
#   --sanitize   the host with the sanitizer of undefined behaviour; the translated code has checks of
#                its own
#   --debug      with symbols for debuggers and profilers
#   --faults     with faults on demand, see provoke.c
#   --id         print the programs that build it, and the version of Envoy's interface, and stop
#   WASM         the built filter (default: build/weir.wasm)
#
# The translated code, whose compilation takes a minute, is kept in the cache folder:
# ${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}.
set -euo pipefail

say() { printf '>> %s\n' "$*" >&2; }
die() { printf 'filter/native/build.sh: %s\n' "$*" >&2; exit 1; }

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd -- "$here/../.." && pwd)
cache=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}/native
case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) die "the native host is for x86-64 and arm64, not for $(uname -m)" ;;
esac
output='' arch=$machine sanitize=no debug=no faults=no id=no wasm=$repo/build/weir.wasm
while (($#)); do
	case $1 in
	-o) output=${2:?-o needs a file name}; shift 2 ;;
	--arch) arch=${2:?--arch needs amd64 or arm64}; shift 2 ;;
	--sanitize) sanitize=yes; shift ;;
	--debug) debug=yes; shift ;;
	--faults) faults=yes; shift ;;
	--id) id=yes; shift ;;
	-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
	-*) die "unknown option $1, see --help" ;;
	*) wasm=$1; shift ;;
	esac
done
wasm=$(realpath -m -- "$wasm")
name=$(basename -- "$wasm" .wasm)
output=$(realpath -m -- "${output:-$(dirname -- "$wasm")/lib$name.so}")

# The compiler is clang 19 of Debian 12, so that one commit gives the same bytes everywhere.
case $machine-$arch in
amd64-amd64) group=native compiler=(clang-19 --target=x86_64-linux-gnu) ;;
arm64-arm64) group=native compiler=(clang-19 --target=aarch64-linux-gnu) ;;
amd64-arm64) group=native-arm64 compiler=(clang-19 --target=aarch64-linux-gnu) ;;
*) die "cannot build for $arch on $machine" ;;
esac
"$repo/tools/setup.sh" "$group"
wabt=1.0.32
[[ $(wasm2c --version) == "$wabt"* ]] || die "wasm2c is $(wasm2c --version), not $wabt, on which the host relies"

# Envoy compares this sum of abi.h with the versions that it knows.
go mod download -C "$repo/tools/native" github.com/envoyproxy/envoy/source/extensions/dynamic_modules
abi=$(go list -C "$repo/tools/native" -m -f '{{.Dir}}' github.com/envoyproxy/envoy/source/extensions/dynamic_modules)/abi
(cd "$abi" && sha256sum --quiet -c "$repo/tools/native/abi.sha256") || die "abi.h is not the file that tools/native/abi.sha256 names"
read -r hash _ <"$repo/tools/native/abi.sha256"
if [[ $id == yes ]]; then
	printf '%s, wasm2c %s, abi.h %s\n' "$("${compiler[0]}" --version | head -n 1)" "$(wasm2c --version)" "$hash"
	exit 0
fi
[[ -e $wasm ]] || die "there is no $wasm: run make wasm"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The path of the folders is in no file that is built.
flags=(-std=gnu11 -O2 -fPIC -fvisibility=hidden -fno-strict-aliasing "-ffile-prefix-map=$work=." "-ffile-prefix-map=$here=."
	"-ffile-prefix-map=$abi=." -include "$here/depth.h")
[[ $debug == no ]] || flags+=(-g)

# place_memory lets the translated code compute where the memory is: at a fixed distance from its
# instance, see memory.c, so that no access loads a pointer first. A load whose result nobody uses goes.
place_memory() {
	sed -i -e 's/&mem->data\[addr\]/\&MEMORY_OF(mem)[addr]/' -e 's/^ *wasm_asm("" ::"r"(result));/ /' "$work/weir.c"
	(($(grep -c 'MEMORY_OF(mem)\[addr\]' "$work/weir.c") == 2)) || die "wasm2c reaches the memory in another way; see place_memory"
}

# compile_module makes $work/module.o, and weir.h, which says how to call it.
compile_module() {
	local key kept
	wasm2c -n weir -o "$work/weir.c" "$wasm"
	place_memory
	key=$( (cat "$work/weir.c" "$work/weir.h" "$here/depth.h" "$here/build.sh"; "${compiler[@]}" --version; printf '%s\n' "$arch" "$debug") |
		sha256sum | cut -c1-16)
	kept=$cache/$key
	if [[ ! -e $kept.o ]]; then
		say "compiling the translated module, once: this may take a minute"
		mkdir -p "$cache"
		# wasm2c's code has unused labels and functions by the thousand.
		"${compiler[@]}" "${flags[@]}" -w -fstack-usage -c "$work/weir.c" -o "$work/module.o"
		for kind in su o; do
			cp "$work/module.$kind" "$kept.$$"
			mv "$kept.$$" "$kept.$kind"
		done
		# Old builds go.
		find "$cache" \( -name '*.o' -o -name '*.su' \) -mtime +7 -delete
	fi
	touch "$kept".{su,o}
	cp "$kept".su "$work/module.su"
	cp "$kept".o "$work/module.o"
}

# check_stack checks that the nested calls that depth.h allows fit into the stack of a thread. A stack has 8 MiB as a
# rule, and at least 2 MiB; a quarter of these is for Envoy and the host. On arm64 frames are larger, and so is the
# least stack: 4 MiB.
check_stack() {
	local most=$((3 << 19)) depth
	[[ $arch != arm64 ]] || most=$((3 << 20))
	depth=$(sed -n 's/^#define WASM_RT_MAX_CALL_STACK_DEPTH //p' "$here/depth.h")
	awk -F '\t' -v most="$most" -v depth="$depth" '
		$2 > largest { largest = $2 }
		$3 == "dynamic" { unbounded = 1 } # and not "dynamic,bounded"
		END { exit NR == 0 || unbounded || depth * (largest + 8) > most } # 8 for the address to return to
	' "$work/module.su" || die "$depth nested calls need more than $most bytes of stack; lower the depth in depth.h"
}
compile_module
check_stack

# A callback that an older Envoy lacks is looked up when it is first called: -z lazy. The ticker's thread and the
# signal handlers outlive each configuration: -z nodelete.
host=(-Wall -Wextra -Werror)
[[ $faults == no ]] || host+=(-DPROVOKE_FAULTS)
if [[ $sanitize == yes ]]; then
	runtime=$(dirname -- "$("${compiler[@]}" -print-file-name="libclang_rt.ubsan_minimal-$(uname -m).so")")
	host+=(-g -fsanitize=undefined -fno-sanitize-recover=undefined
		-fsanitize-minimal-runtime -shared-libsan "-Wl,-rpath,$runtime")
fi
link=(-shared -Wl,-z,lazy -Wl,-z,nodelete -Wl,-Bsymbolic -Wl,--build-id=none)
[[ $debug == yes || $sanitize == yes ]] || link+=(-s)
mkdir -p "$(dirname -- "$output")"
(cd "$here" && "${compiler[@]}" "${flags[@]}" "${host[@]}" -I"$work" -isystem "$abi" "-DABI_HASH=\"$hash\"" \
	"${link[@]}" -o "$work/built.so" ./*.c "$work/module.o" -lpthread -lm)
mv "$work/built.so" "$output"
say "$output: $(stat -c %s "$output") bytes, for $arch"
