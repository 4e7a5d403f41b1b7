#!/usr/bin/env bash
# Prints the sum of what the console is built from.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
sha256sum build.sh index.html package-lock.json package.json tsconfig.json vite.config.ts \
	$(find src -type f ! -name api.gen.ts | LC_ALL=C sort)
