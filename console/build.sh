#!/usr/bin/env bash
# Builds the console into controlplane/internal/serve/console/dist, or into the folder that is named: with Node
# and the packages that package-lock.json pins, which tools/setup.sh console installs.
set -euo pipefail

case ${1:-} in
	-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
	-*) echo "unknown option $1, see --help" >&2; exit 2 ;;
esac
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
into=${1:-$here/../controlplane/internal/serve/console/dist}
cache=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}
node=${NODE:-$cache/clients/node}

cd "$here"
run() { "$node" "node_modules/$1" "${@:2}"; }
run openapi-typescript/bin/cli.js ../api/openapi.yaml -o src/api.gen.ts >/dev/null
run typescript/bin/tsc --noEmit
run vite/bin/vite.js build --logLevel error --outDir "$into"
# What was built, for a test that needs no Node: the sources' sum.
if (($# == 0)); then
	./sum.sh >../controlplane/internal/serve/console/sources.sha256
fi
