#!/bin/sh
# Before the files go. An upgrade keeps the unit: rpm says 1 then, dpkg "upgrade".
set -e
root="${DPKG_ROOT:-}"
case "$1" in
    0 | remove)
        if [ -z "$root" ] && [ -d /run/systemd/system ]; then
            systemctl disable --now helenus-agent.service
        fi
        ;;
esac
# What postinstall.sh compiled is no package's file.
find "$root/opt/helenus/lib" -name __pycache__ -type d -prune -exec rm -rf {} +
