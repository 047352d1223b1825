#!/bin/busybox sh
# The init of the Linux machine that the node is compared with. Its network is on the kernel's command line:
# peer.ip=ADDRESS/PREFIX peer.gw=ADDRESS. It starts every service, says so, and then takes commands, a line each.

export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root LD_LIBRARY_PATH=/lib/x86_64-linux-gnu
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm

for word in $(cat /proc/cmdline); do
    case $word in
        peer.ip=*) ip=${word#*=} ;;
        peer.gw=*) gateway=${word#*=} ;;
    esac
done

while read -r module; do
    insmod "/modules/$module.ko" 2>/dev/null || echo "init: module $module cannot be loaded"
done </modules/order

ip link set lo up
ip link set eth0 up
ip address add "$ip" dev eth0
[ -n "$gateway" ] && ip route add default via "$gateway"

# The driver looks for partitions in the background.
tries=0
until [ -b /dev/nvme0n1p2 ] || [ $tries -ge 100 ]; do
    usleep 50000
    tries=$((tries + 1))
done

# nbd-server goes through the page cache, which direct access to the same blocks would empty: it has a partition of
# its own, and that is read once, so that it answers from memory.
mkdir -p /etc
cat >/etc/nbd.conf <<'END'
[generic]
allowlist = true
port = 10810
[data]
exportname = /dev/nvme0n1p1
END
cat /dev/nvme0n1p1 >/dev/null
nbd-server -C /etc/nbd.conf >/dev/null 2>&1
qemu-nbd --format=raw --cache=none --aio=native --persistent --shared=8 --port=10811 --export-name=data \
    /dev/nvme0n1p2 >/dev/null 2>&1 &

mount -t configfs configfs /sys/kernel/config
target=/sys/kernel/config/nvmet
subsystem=$target/subsystems/nqn.2026-11.nos:bench
mkdir "$subsystem"
echo 1 >"$subsystem/attr_allow_any_host"
mkdir "$subsystem/namespaces/1"
printf /dev/nvme0n1p2 >"$subsystem/namespaces/1/device_path"
echo 1 >"$subsystem/namespaces/1/enable"
mkdir "$target/ports/1"
echo ipv4 >"$target/ports/1/addr_adrfam"
echo tcp >"$target/ports/1/addr_trtype"
echo 0.0.0.0 >"$target/ports/1/addr_traddr"
echo 4420 >"$target/ports/1/addr_trsvcid"
ln -s "$subsystem" "$target/ports/1/subsystems/bench"

load echo 0.0.0.0:9000 &

# Who says that it is ready must not refuse the first who asks.
for port in 10810 10811 4420; do
    tries=0
    until netstat -ltn | grep -q ":$port " || [ $tries -ge 200 ]; do
        usleep 50000
        tries=$((tries + 1))
    done
done

# From here on the kernel's messages would only break lines that others read; dmesg has them.
dmesg -n 1
stty -F /dev/console cols 1000 2>/dev/null
echo
echo "peer: ready, clock $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource), $(nproc) CPUs, Linux $(uname -r)"
while printf 'nos> ' && read -r line; do
    eval "$line"
done
poweroff -f
