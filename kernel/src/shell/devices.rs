//! Commands about the network.

use alloc::format;
use alloc::string::String;
use core::net::Ipv4Addr;

use kcore::module;
use stack::{AddressSource, EchoState, StackState};

use super::{Command, Done, Duration, Size, Trouble, say};
use crate::node::Node;

pub(super) const COMMANDS: &[Command] = &[NET, PING, UDPECHO];

const PING_PAYLOAD_BYTES: usize = 56;
const PING_TIMEOUT_NS: u64 = 1_000_000_000;
const PING_INTERVAL_NS: u64 = 200_000_000;

const NET: Command = Command {
    name: "net",
    usage: "[restart CARD]",
    help: "the network cards, the node's address, what was dropped; resets a card",
    run: net,
};
const PING: Command = Command {
    name: "ping",
    usage: "ADDRESS [COUNT]",
    help: "asks a host for an answer (ICMP echo)",
    run: ping,
};
const UDPECHO: Command = Command {
    name: "udpecho",
    usage: "[PORT|off]",
    help: "sends UDP datagrams to a port back where they came from",
    run: udpecho,
};

fn net(node: &Node, arguments: &[&str]) -> Done {
    match arguments {
        [] => {}
        ["restart", name] => return restart(name),
        _ => return Err(NET.wrong_use()),
    }
    if node.stacks().is_empty() {
        say!("no network card was found; `pci` lists what the machine has");
    }
    for stack in node.stacks() {
        show_stack(&stack.state());
    }
    for loaded in module::list() {
        for line in loaded.module().report(NET.name) {
            say!("{line}");
        }
    }
    Ok(())
}

fn restart(name: &str) -> Done {
    let card = kcore::net::find(name).ok_or_else(|| Trouble::from(format!("there is no card {name}")))?;
    card.restart();
    Ok(())
}

fn show_stack(state: &StackState) {
    say!("{:<6} {}, MTU {}", state.card, state.mac, state.mtu);
    let source = match &state.addresses.source {
        AddressSource::Nowhere => String::from("DHCP has not answered"),
        AddressSource::Fixed => String::from("fixed"),
        AddressSource::Dhcp { server, .. } => format!("by DHCP from {server}"),
    };
    match (state.addresses.subnet, state.addresses.gateway) {
        (Some(subnet), Some(gateway)) => say!("       {subnet}, gateway {gateway}, {source}"),
        (Some(subnet), None) => say!("       {subnet}, no gateway, {source}"),
        (None, _) => say!("       no address: {source}"),
    }
    let card = &state.card_stats;
    say!(
        "       received {} frames, {}; {} dropped, {} bad",
        card.rx_frames,
        Size(card.rx_bytes),
        card.rx_dropped,
        card.rx_errors
    );
    say!(
        "       sent {} frames, {}; {} dropped; {} doorbells, {} interrupts",
        card.tx_frames,
        Size(card.tx_bytes),
        card.tx_dropped,
        card.doorbells,
        card.interrupts
    );
    say!(
        "       to UDP services {}, to NAT {}, to the node's TCP/IP {}",
        state.to_handlers,
        state.to_forwarder,
        state.to_library
    );
    for (port, datagrams) in &state.udp_ports {
        say!("       UDP port {port}: {datagrams} datagrams");
    }
    for (way, drops) in [("received", &state.receive_drops), ("to send", &state.send_drops)] {
        for drop in drops.iter().filter(|drop| drop.frames > 0) {
            say!("       dropped, {way}: {} {}", drop.frames, drop.name);
        }
    }
    for neighbour in &state.neighbours {
        match neighbour.mac {
            Some(mac) => say!("       neighbour {} at {mac}", neighbour.address),
            None => say!("       neighbour {} does not answer yet", neighbour.address),
        }
    }
}

fn ping(node: &Node, arguments: &[&str]) -> Done {
    let (address, count) = match arguments {
        [address] => (*address, 4),
        [address, count] => {
            let count = count.parse().ok().filter(|count| (1..=1000).contains(count));
            (*address, count.ok_or_else(|| PING.wrong_use())?)
        }
        _ => return Err(PING.wrong_use()),
    };
    let destination: Ipv4Addr =
        address.parse().map_err(|_| format!("{address} is not an IPv4 address such as 192.0.2.1"))?;
    let stack = node
        .stack_towards(destination)
        .ok_or("there is no network card; `pci` lists what the machine has")?;
    let mut answers = 0;
    for number in 1..=count {
        let start_ns = kcore::time::now_ns();
        match stack.ping(destination, PING_PAYLOAD_BYTES, PING_TIMEOUT_NS) {
            Ok(reply) => {
                answers += 1;
                let round_trip = Duration(reply.round_trip_ns);
                say!("{number}: {} answers in {round_trip}, TTL {}", reply.from, reply.ttl);
            }
            Err(error) => say!("{number}: {error}"),
        }
        if number < count {
            kcore::task::sleep_until(start_ns + PING_INTERVAL_NS);
        }
    }
    say!("{answers} of {count} answered");
    if answers == 0 {
        return Err(Trouble::from("no answer; `net` shows the node's address and its gateway"));
    }
    Ok(())
}

fn udpecho(node: &Node, arguments: &[&str]) -> Done {
    let show = |card: &str, did: &str, echo: &EchoState| {
        let EchoState { port, answered, dropped } = echo;
        say!("{card}: UDP port {port} {did}; {answered} datagrams sent back, {dropped} dropped");
    };
    for stack in node.stacks() {
        let card = stack.card().name();
        match arguments {
            [] => match stack.echo_state() {
                Some(echo) => show(card, "is echoed", &echo),
                None => say!("{card}: no port is echoed"),
            },
            ["off"] => {
                if let Some(echo) = stack.stop_echo() {
                    show(card, "is echoed no more", &echo);
                }
            }
            [port] => {
                let port = port.parse().map_err(|_| UDPECHO.wrong_use())?;
                stack.start_echo(port)?;
                say!("{card}: UDP port {port} is echoed");
            }
            _ => return Err(UDPECHO.wrong_use()),
        }
    }
    Ok(())
}
