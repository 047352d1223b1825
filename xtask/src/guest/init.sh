#!/bin/busybox sh
# The init of nos's demonstration guests. Its network is on the kernel's command line, word by word:
# nos.name=NAME nos.ip=ADDRESS/PREFIX nos.gw=ADDRESS nos.hosts=NAME:ADDRESS,...

export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts && mount -t devpts devpts /dev/pts

name=guest
for word in $(cat /proc/cmdline); do
    case $word in
        nos.name=*)  name=${word#*=} ;;
        nos.ip=*)    ip=${word#*=} ;;
        nos.gw=*)    gateway=${word#*=} ;;
        nos.hosts=*) hosts=${word#*=} ;;
    esac
done

hostname "$name"
echo "127.0.0.1 localhost" >/etc/hosts
for host in $(echo "$hosts" | tr ',' ' '); do
    echo "${host#*:} ${host%%:*}" >>/etc/hosts
done

load() {
    while read -r module; do
        insmod "/modules/$module.ko" || echo "init: module $module cannot be loaded"
    done <"$1"
}
load /modules/order
# A module for every kind of device that is there.
for device in $(cat /sys/bus/pci/devices/*/device | sort -u); do
    [ -e "/modules/order.${device#0x}" ] && load "/modules/order.${device#0x}"
done

# A console that is there only now, and is the one that the command line asks for.
for word in $(cat /proc/cmdline); do
    case $word in console=*) console=${word#*=} ;; esac
done
[ "$console" = hvc0 ] && [ -e /dev/hvc0 ] && exec </dev/hvc0 >/dev/hvc0 2>&1

ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
    ip link set eth0 up
    [ -n "$ip" ] && ip address add "$ip" dev eth0
    [ -n "$gateway" ] && ip route add default via "$gateway"
fi

echo "<!doctype html><title>$name</title><h1>$name, a guest of nos</h1>" >/www/index.html
httpd -p 80 -h /www

# From here on the kernel's messages would only break lines that others read; dmesg has them.
dmesg -n 1
echo
echo "nos: guest $name ready"
while true; do
    setsid cttyhack sh -l
done
