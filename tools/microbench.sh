#!/usr/bin/env bash
# Runs each microbenchmark of the tree COUNT times, in as many rounds, and prints benchstat's tables and what became of the targets.
#
#   tools/microbench.sh [COUNT [BASE [ONLY [TIME]]]]      default: 10 rounds, nothing to compare with, all benchmarks, 100ms
#
# BASE is a git revision. It is checked out elsewhere for the time being, and in each round the benchmarks of a package run there and
# then here, so that what else the machine does meets both. ONLY is a regular expression as for go test -bench, TIME how long each runs
# in each round: on a machine that is busy with other things, many short rounds find the least time sooner than few long ones.
# build/microbench/new.txt and base.txt keep the raw output of the last run. Needs redis-server: tools/setup.sh redis.
set -euo pipefail
case ${1-} in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

count=${1:-10} base=${2:-} only=${3:-.} benchtime=${4:-100ms}
benchstat=golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
out=$PWD/build/microbench

say() { printf '>> %s\n' "$*" >&2; }
die() { printf 'tools/microbench.sh: %s\n' "$*" >&2; exit 1; }
[[ $count =~ ^[1-9][0-9]*$ ]] || die "COUNT is how many rounds there are, not $count"

work=$(mktemp -d)
clean() {
	[[ ! -e $work/base ]] || git worktree remove --force "$work/base"
	rm -rf "$work"
}
trap clean EXIT

# packages prints the folders of a tree with such benchmarks, but for test/, which runs whole processes.
packages() {
	(cd "$1" && grep -rE --include='*_test.go' '^func Benchmark' . | sed -E 's/\(.*//; s/:func / /' | grep -vE '^\./(test|build)/' |
		while read -r file name; do
			if [[ $name =~ ${only%%/*} ]]; then dirname "$file"; fi
		done | sort -u)
}

compile() { # compile TREE NAME
	local package
	for package in $(packages "$1"); do
		(cd "$1" && go test -c -o "$work/$2-${package//\//_}" "$package") || die "the tests of $package do not compile"
	done
}

run() { # run TREE NAME PACKAGE; a package that the tree does not have, or without benchmarks there, runs nothing
	local binary="$work/$2-${3//\//_}"
	[[ -x $binary ]] || return 0
	if ! (cd "$1/$3" && "$binary" -test.run '^$' -test.bench "$only" -test.benchtime "$benchtime" -test.timeout 10m) >"$work/output" 2>&1; then
		cat "$work/output" >&2
		# What an older state cannot do is no reason to learn nothing of this one.
		[[ $2 == base ]] || die "a benchmark of $3 failed"
		say "a benchmark of $3 failed in $base: what it did before that counts"
	fi
	cat "$work/output" >>"$out/$2.txt"
}

rm -rf "$out"
mkdir -p "$out"
inputs=()
if [[ $base ]]; then
	git rev-parse -q --verify "$base^{commit}" >/dev/null || die "BASE is a revision of this repository, not $base"
	say "building the benchmarks of $base"
	git worktree add -q --detach "$work/base" "$base"
	compile "$work/base" base
	inputs=("base=$out/base.txt")
fi
say "building the benchmarks"
compile . new
inputs+=("new=$out/new.txt")

for ((round = 1; round <= count; round++)); do
	say "round $round of $count, load average $(cut -d' ' -f1 /proc/loadavg)"
	for package in $( (packages .; [[ ! $base ]] || packages "$work/base") | sort -u); do
		[[ ! $base ]] || run "$work/base" base "$package"
		run "$PWD" new "$package"
	done
done
grep -q '^Benchmark' "$out/new.txt" || die "there is no benchmark $only"
go run $benchstat "${inputs[@]}"

# Of the benchmark with a target: the least time and the median.
awk '
	function sorted(list, n,    i, k, v) {
		for (i = 2; i <= n; i++) {
			v = list[i]
			for (k = i - 1; k > 0 && list[k] > v; k--) list[k + 1] = list[k]
			list[k + 1] = v
		}
	}
	function median(list, n) { return (list[int((n + 1) / 2)] + list[int((n + 2) / 2)]) / 2 }
	/^BenchmarkTake\/token_bucket/ { take[++takes] = $3; if ($(NF - 1) > allocs) allocs = $(NF - 1) }
	END {
		if (takes > 0) {
			sorted(take, takes)
			printf "Take of a token bucket: %.2f ns at least, %.2f in the median, %d allocations (target: less than 5 ns, none)\n", take[1], median(take, takes), allocs
		}
	}' "$out/new.txt"
