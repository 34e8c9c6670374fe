#!/usr/bin/env bash
# README's commands in a bare Debian: a root of debootstrap's, the tree as committed, then `make quickstart`, and eight ranks of
# ./train_asga. Prints the time of each. Needs root, debootstrap and the network.
#   dev/bare_root.sh [SUITE]       default bookworm; the root stays in /var/tmp/bare_root until the next call
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${1:-bookworm} root=${TMPDIR:-/var/tmp}/bare_root
unmount() { for folder in dev/shm dev proc; do umount "$root/$folder" 2> /dev/null || true; done; }
trap unmount EXIT
unmount
rm -rf --one-file-system "$root" && mkdir -p "$root"
debootstrap --variant=minbase --include=ca-certificates,git,make "$suite" "$root" > "$root.log" || { tail -n 3 "$root.log"; exit 1; }
for folder in proc dev dev/shm; do mount --bind "/$folder" "$root/$folder"; done
[ ! -e /etc/apt/apt.conf ] || cp /etc/apt/apt.conf "$root/etc/apt"   # a proxy
cp /etc/resolv.conf "$root/etc"
mkdir "$root/engine" && git archive HEAD | tar xf - -C "$root/engine"
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    chroot "$root" sh -c "cd /engine && $1"; }
TIMEFORMAT='%R s'
time inside "make quickstart"
time inside "make train_asga && mpirun --oversubscribe -np 8 ./train_asga --steps 4 --batch-size 1"
