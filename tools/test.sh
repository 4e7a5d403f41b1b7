#!/usr/bin/env bash
# Runs the steps of `make test` in two rows, one beside the other: tests with processes wait for time
# more than they work, and the second row uses the processors meanwhile.
#
#   tools/test.sh
#
# No step of the second row depends on time, so that it may run late and slowly, with a low priority.
# Its output comes when both rows have ended. With `make -k test` each step runs, also after a failure.
# WEIR_TEST_NICE is the second row's niceness, 10 by default. Beside busy loops it needs 0 to end soon.
#
# Compilers and tests in one process collect garbage less often, which saves a quarter of their time on
# the processors. The steps with Envoy measure the memory and speed of programs, which run there as they
# do for users.
set -euo pipefail
case ${1-} in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

make=${MAKE:-make} MAKEFLAGS=${MAKEFLAGS-}
work=$(mktemp -d) # Has the file built after the build, and failed after a failure in either row.

seldom=400 # The growth of the memory in use, in percent, at which Go collects garbage; 100 without it.

# step runs tasks of the Makefile, and prints how long they took. After a failure both rows end, unless
# make keeps going.
step() {
	goes_on || exit 1
	local begun=$SECONDS
	"$make" "$@" || touch "$work/failed"
	printf '>> %s: %d s\n' "$*" $((SECONDS - begun))
	goes_on || exit 1
}

goes_on() {
	[[ ! -e $work/failed || ${MAKEFLAGS%% *} =~ ^[a-z]*k ]] # The first word is make's flags of one letter.
}

second_row() {
	export GOGC=$seldom
	step fmt
	step vet
	step lint
	step test-386
	until [[ -e $work/built ]]; do sleep 1; done # Imports are compared with nginx, which setup installs.
	step test-unit
	step test-virtual
	step reproducible
}

finish() {
	kill -- -"$second" 2>/dev/null || true
	cat "$work/second-row"
	rm -rf "$work"
}

# The second row has a process group of its own, so that all of it ends with this script.
set -m
second_row >"$work/second-row" 2>&1 </dev/null &
second=$!
set +m
renice -n "${WEIR_TEST_NICE:-10}" -g "$second" >/dev/null
trap finish EXIT
printf '>> beside the next steps: format, vet, staticcheck, tests that depend on no time; their output comes last\n' >&2

GOGC=$seldom step setup build native-faults
touch "$work/built"
GOGC=$seldom step test-race
step test-e2e
step test-clients
wait "$second" || touch "$work/failed"
[[ ! -e $work/failed ]]
