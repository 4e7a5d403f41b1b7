#!/usr/bin/env bash
# Runs the steps of `make test` in two rows, one beside the other: tests under the race detector wait
# for time and for Redis more than they work, and the second row uses the processors meanwhile.
#
#   tools/test.sh
#
# No step of the second row depends on time, so that it may run late and slowly. Its output comes when
# it has ended. End-to-end tests measure, so they start after it. With `make -k test` each step runs,
# also after a failure.
set -euo pipefail
case ${1-} in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

make=${MAKE:-make} MAKEFLAGS=${MAKEFLAGS-}
work=$(mktemp -d)
failed=0

# step runs a task of the Makefile. After a failure it ends the row, unless make keeps going.
step() {
	"$make" "$@" || fail
}

fail() {
	failed=1
	[[ ${MAKEFLAGS%% *} =~ ^[a-z]*k ]] || exit 1 # The first word is make's flags of one letter.
}

second_row() {
	step fmt
	step vet
	step lint
	step test-386
	until [[ -e $work/built ]]; do sleep 1; done # Imports are compared with nginx, which setup installs.
	step test-unit
	step reproducible
	return "$failed"
}

# The second row has a process group of its own, so that all of it ends with this script.
set -m
(second_row) >"$work/second-row" 2>&1 </dev/null &
second=$!
set +m
renice -n 10 -g "$second" >/dev/null
trap 'kill -- -"$second" 2>/dev/null || true; rm -rf "$work"' EXIT
printf '>> beside the next steps: format, vet, staticcheck, tests without goroutines; their output comes later\n' >&2

step setup build
touch "$work/built"
step test-race
ended=0
wait "$second" || ended=1
cat "$work/second-row"
((ended == 0)) || fail
step test-e2e
step test-clients
exit "$failed"
