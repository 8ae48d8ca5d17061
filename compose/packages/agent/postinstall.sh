#!/bin/sh
# After the files are there, of a first installation or an upgrade. Starts nothing that did not run: there is no
# configuration yet. dpkg sets DPKG_ROOT where it installs into another directory than /.
set -e
root="${DPKG_ROOT:-}"
# The unit may not write here, so Python could not keep what it compiles.
"$root/opt/helenus/bin/python" -m compileall -q "$root/opt/helenus/lib" || true
# It may hold passwords, and the agent runs as Cassandra's user.
if getent group cassandra >/dev/null; then
    chgrp cassandra "$root/etc/helenus/agent.properties"
else
    echo "helenus-agent: there is no group cassandra yet; let the agent's user read /etc/helenus/agent.properties"
fi
if [ -z "$root" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart helenus-agent.service
fi
