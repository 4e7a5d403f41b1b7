#!/bin/sh
# apart.sh COMMAND...: runs a command, as root, with a network, mounts and processes of its own, so
# that pods which it runs leave nothing behind, however it ends, and meet no other containers of the
# machine.
set -eu
case ${1:---help} in
--help) sed -n '2,/^set/{s/^# \{0,1\}//;/^set/d;p}' "$0"; exit ;;
esac
[ "$(id -u)" = 0 ] || { echo "apart.sh: containers need root" >&2; exit 1; }
export WEIR_TESTS_APART=yes
exec unshare --net --mount --pid --fork --kill-child --mount-proc sh -euc '
	ip link set lo up
	mkdir -p /var/lib/kubelet
	# Kubelet and containerd write here whatever they are told.
	for dir in /run /var/log /var/lib/kubelet; do mount -t tmpfs apart "$dir"; done
	exec "$@"' sh "$@"
