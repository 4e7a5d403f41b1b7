#!/usr/bin/env bash
# Prints the sums of what the console is built from, by which a test knows that it was built anew. It
# takes no argument.
set -euo pipefail
case ${1:-} in
	-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
	?*) echo "unknown argument $1, see --help" >&2; exit 2 ;;
esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
sha256sum build.sh index.html package-lock.json package.json tsconfig.json vite.config.ts \
	$(find src -type f ! -name api.gen.ts | LC_ALL=C sort)
