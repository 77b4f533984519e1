#!/bin/sh
# Prepares the mounts of a container's image in namespaces of its own, then runs the services of compose.yaml.
set -eu
umask 022
checkout=$1
python=$2
ip link set lo up
mount -t tmpfs tmpfs /srv
printf '127.0.0.1 localhost postgres redis store api code webserver\n' > /srv/hosts
mount --bind /srv/hosts /etc/hosts
mkdir -p /srv/checkout /srv/tmp
mount --bind "$checkout" /srv/checkout
mount -t tmpfs tmpfs /opt
mkdir /opt/recorder
mount --bind /srv/checkout /opt/recorder
mkdir /srv/recorder /srv/dagster
chmod 755 /srv
cd /opt/recorder
exec env PYTHONPATH=/opt/recorder AWS_EC2_METADATA_DISABLED=true "$python" -m tests.support.compose_services
