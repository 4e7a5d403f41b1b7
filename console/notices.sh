#!/usr/bin/env bash
# Writes console/notices.txt: the licenses of the packages that the built console contains. It takes no argument; node_modules
# is there after tools/setup.sh console.
set -euo pipefail
case ${1:-} in
	-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
	?*) echo "unknown argument $1, see --help" >&2; exit 2 ;;
esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
cache=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}
"${NODE:-$cache/clients/node}" - >notices.txt <<'END'
const fs = require("fs"), locked = JSON.parse(fs.readFileSync("package-lock.json", "utf8")).packages;
for (const [path, about] of Object.entries(locked)) {
  if (path === "" || about.dev || path.includes("@types/")) continue;
  const license = fs.readdirSync(path).find((name) => /^licen[cs]e/i.test(name));
  if (!license) throw new Error(`${path} has no file with a license`);
  const name = path.replace("node_modules/", "");
  console.log(`\n${"=".repeat(80)}\n${name} ${about.version}\n\n${fs.readFileSync(`${path}/${license}`, "utf8").trim()}`);
}
END
