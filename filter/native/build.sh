#!/usr/bin/env bash
# Builds the native host of the filter: build/libweir.so, from build/weir.wasm and the C files here.
#
#   filter/native/build.sh [-o FILE] [WASM]
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd -- "$here/../.." && pwd)
output=$repo/build/libweir.so
wasm=$repo/build/weir.wasm
CC=${CC:-gcc}
while (($#)); do
	case $1 in
	-o) output=$2; shift 2 ;;
	*) wasm=$1; shift ;;
	esac
done
abi=$(go mod download -json github.com/envoyproxy/envoy/source/extensions/dynamic_modules@v0.0.0-20260129014508-e8c1dc7dcbcd | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/abi
work=${WORK:-$(mktemp -d)}
[[ -n ${WORK:-} ]] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
if [[ ! $work/weir.o -nt $wasm ]]; then
	wasm2c "$wasm" -n weir -o "$work/weir.c"
	$CC -std=gnu11 -O2 -fPIC -fvisibility=hidden -include "$here/depth.h" -w -c "$work/weir.c" -o "$work/weir.o"
fi
hash=$(sha256sum "$abi/abi.h" | cut -d ' ' -f 1)
$CC -std=gnu11 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror -include "$here/depth.h" -I"$work" -isystem "$abi" \
	-DABI_HASH="\"$hash\"" -shared -Wl,-z,lazy -Wl,-Bsymbolic ${EXTRA:-} -o "$output" "$here"/*.c "$work/weir.o" -lpthread -lm
ls -l "$output" >&2
