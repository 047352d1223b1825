//! Commands about disks and the network.

use super::{Command, Done, Size, say};
use crate::node::Node;

pub(super) const COMMANDS: &[Command] = &[DISKS, NET];

const DISKS: Command =
    Command { name: "disks", usage: "", help: "every disk and partition, with its counters", run: disks };
const NET: Command =
    Command { name: "net", usage: "", help: "the network cards, the node's address, what was dropped", run: net };

fn disks(_node: &Node, arguments: &[&str]) -> Done {
    if !arguments.is_empty() {
        return Err(DISKS.wrong_use());
    }
    let disks = kcore::block::disks();
    if disks.is_empty() {
        say!("no disk was found; `pci` lists what the machine has");
        return Ok(());
    }
    for disk in disks {
        let stats = disk.stats();
        say!(
            "{:<12} {:>9}, {} B sectors{}  {}",
            disk.name(),
            alloc::format!("{}", Size(disk.sectors().saturating_mul(u64::from(disk.sector_bytes())))),
            disk.sector_bytes(),
            if disk.read_only() { ", read-only" } else { "" },
            disk.model()
        );
        say!(
            "{:<12} {} reads, {} writes, {} flushes, {} errors; {} doorbells, {} interrupts",
            "", stats.reads, stats.writes, stats.flushes, stats.errors, stats.doorbells, stats.interrupts
        );
    }
    Ok(())
}

fn net(_node: &Node, arguments: &[&str]) -> Done {
    if !arguments.is_empty() {
        return Err(NET.wrong_use());
    }
    for device in kcore::net::devices() {
        let stats = device.stats();
        let mac = device.mac();
        say!(
            "{:<6} {:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}, MTU {}",
            device.name(), mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], device.mtu()
        );
        say!(
            "       received {} frames, {}; {} dropped, {} bad",
            stats.rx_frames, Size(stats.rx_bytes), stats.rx_dropped, stats.rx_errors
        );
        say!(
            "       sent {} frames, {}; {} dropped; {} doorbells, {} interrupts",
            stats.tx_frames, Size(stats.tx_bytes), stats.tx_dropped, stats.doorbells, stats.interrupts
        );
    }
    Ok(())
}
