//! What `netblk list` shows of a service.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use netblk_logic::ROOM;
use netblk_proto::v2::{Op, Status};

use crate::counters::{Counts, Drop};
use crate::instance::{Instance, client_at};
use crate::slot::SLOTS;

impl Instance {
    /// Who uses it.
    pub(crate) fn clients(&self, now_ns: u64) -> Vec<ClientInfo> {
        let mut clients = Vec::new();
        for (place, session) in self.sessions.lock().iter() {
            clients.push(ClientInfo {
                address: session.client().to_string(),
                version: 2,
                age_ns: now_ns.saturating_sub(session.since_ns()),
                silent_ns: Some(session.silent_ns(now_ns)),
                requests: session.requests,
                duplicates: session.duplicates,
                bad_tags: session.bad_tags,
                under_way: self.room.held_by(client_at(place)),
            });
        }
        clients.extend(self.neighbours.iter().map(|neighbour| ClientInfo {
            address: neighbour.address.to_string(),
            version: 1,
            age_ns: now_ns.saturating_sub(neighbour.since_ns),
            silent_ns: None,
            requests: neighbour.requests,
            duplicates: 0,
            bad_tags: 0,
            under_way: self.room.held_by(neighbour.client),
        }));
        clients
    }
}

/// A service, for the shell.
#[derive(Debug, Clone)]
pub struct ServiceInfo {
    /// The UDP port.
    pub port: u16,
    /// What is served.
    pub disk: String,
    /// The card it is served on.
    pub card: String,
    /// Whether WRITE is refused.
    pub read_only: bool,
    /// What datagrams are cut for.
    pub mtu: u16,
    /// The worker's CPU.
    pub cpu: usize,
    /// How long the worker polls for requests, in us.
    pub poll_us: Option<u32>,
    /// Who may use it.
    pub access: String,
    /// The device.
    pub size_bytes: u64,
    /// Its sector.
    pub sector_bytes: u32,
    /// Since the start.
    pub uptime_ns: u64,
    /// Slots at work now, of [`SLOTS`].
    pub busy_slots: usize,
    /// Datagrams that take room now, of [`ROOM`].
    pub room_taken: u32,
    /// Since the start.
    pub traffic: Traffic,
    /// Since the services were last listed, or the start.
    pub recent: Traffic,
    /// What the service counted.
    pub counts: Counts,
    /// Who uses it.
    pub clients: Vec<ClientInfo>,
}

/// A session, or an address that uses version 1.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// Its address.
    pub address: String,
    /// The protocol's version that it speaks.
    pub version: u8,
    /// Since it came.
    pub age_ns: u64,
    /// Since it was heard of; of a session only.
    pub silent_ns: Option<u64>,
    /// What it has asked.
    pub requests: u64,
    /// Numbered requests that came more than once.
    pub duplicates: u64,
    /// Datagrams with a wrong tag.
    pub bad_tags: u64,
    /// Datagrams of its that take room now.
    pub under_way: u32,
}

impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, version, age_ns, requests, duplicates, bad_tags, under_way, .. } = self;
        let age_s = age_ns / 1_000_000_000;
        write!(
            f,
            "{address} version {version}, {age_s} s: {requests} requests, {under_way} datagrams under way"
        )?;
        match self.silent_ns {
            None => Ok(()),
            Some(silent_ns) => write!(
                f,
                ", {duplicates} duplicates, {bad_tags} wrong tags, silent for {} s",
                silent_ns / 1_000_000_000
            ),
        }
    }
}

/// One line: what is served, and how.
impl fmt::Display for ServiceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, disk, card, mtu, cpu, size_bytes, sector_bytes, .. } = self;
        let poll = self.poll_us.map_or_else(|| String::from("auto"), |us| alloc::format!("{us}"));
        let mode = if self.read_only { " ro" } else { "" };
        write!(
            f,
            "{disk}{mode} on {card} port {port}: {} MiB in sectors of {sector_bytes}, mtu={mtu} cpu={cpu} poll={poll}, {}",
            size_bytes >> 20,
            self.access
        )
    }
}

impl ServiceInfo {
    /// The counters, a line for each group, zeros left out where a zero says nothing.
    pub fn counter_lines(&self) -> Vec<String> {
        let counts = &self.counts;
        let requests = pairs(Op::ALL.iter().map(|op| op.to_string()).zip(counts.requests), true);
        let replies = pairs(Status::ALL.iter().map(|status| status.to_string()).zip(counts.replies), false);
        let held = [
            ("queue full", counts.held_queue_full),
            ("no frame", counts.held_no_frame),
            ("overlap", counts.held_overlap),
        ];
        let dropped = pairs(Drop::ALL.iter().map(|why| String::from(why.text())).zip(counts.dropped), false);
        let mut lines = alloc::vec![
            alloc::format!("requests   {requests}"),
            alloc::format!("replies    {replies}; {} not sent for want of room", counts.replies_lost),
            alloc::format!("bytes      {} read, {} written", counts.read_bytes, counts.written_bytes),
            alloc::format!("dropped    {} ({dropped})", counts.dropped_in_all()),
            alloc::format!("copies     {} of {} bytes", counts.copies, counts.copied_bytes),
            alloc::format!("held       {}", pairs(named(held), true)),
            alloc::format!(
                "worker     {} disk kicks, {} reply batches, {} sleeps, {} of {SLOTS} slots and {} of {ROOM} datagrams busy",
                counts.kicks,
                counts.batches,
                counts.sleeps,
                self.busy_slots,
                self.room_taken
            ),
            alloc::format!("traffic    {}", self.traffic),
            alloc::format!("recently   {}", self.recent),
        ];
        lines.extend(self.clients.iter().map(|client| alloc::format!("client     {client}")));
        if counts.strays > 0 {
            lines.push(alloc::format!(
                "strays     {} completions for nothing: a driver's fault",
                counts.strays
            ));
        }
        lines
    }
}

/// Requests, and what they and everybody else caused between the node and its devices: doorbells, which are a bus
/// write each and under a hypervisor an exit, and interrupts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub requests: u64,
    pub disk_doorbells: u64,
    pub disk_interrupts: u64,
    pub card_doorbells: u64,
    pub card_interrupts: u64,
}

impl Traffic {
    /// What there was since `before`.
    #[must_use]
    pub fn since(&self, before: &Traffic) -> Traffic {
        Traffic {
            requests: self.requests - before.requests,
            disk_doorbells: self.disk_doorbells - before.disk_doorbells,
            disk_interrupts: self.disk_interrupts - before.disk_interrupts,
            card_doorbells: self.card_doorbells - before.card_doorbells,
            card_interrupts: self.card_interrupts - before.card_interrupts,
        }
    }
}

/// "5000 requests; disk 0.125 doorbells, 0.250 interrupts a request; card ...".
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each =
            |count: u64| Thousandths(count.saturating_mul(1000).checked_div(self.requests).unwrap_or(0));
        write!(
            f,
            "{} requests; disk {} doorbells, {} interrupts a request; card {} doorbells, {} interrupts a request",
            self.requests,
            each(self.disk_doorbells),
            each(self.disk_interrupts),
            each(self.card_doorbells),
            each(self.card_interrupts)
        )
    }
}

/// A number with three places.
struct Thousandths(u64);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

fn named<const N: usize>(pairs: [(&str, u64); N]) -> impl Iterator<Item = (String, u64)> {
    pairs.map(|(name, number)| (String::from(name), number)).into_iter()
}

/// "3 READ, 1 FLUSH"; with `zeros`, those too.
fn pairs(pairs: impl Iterator<Item = (String, u64)>, zeros: bool) -> String {
    let shown: Vec<String> = pairs
        .filter(|&(_, number)| zeros || number > 0)
        .map(|(name, number)| alloc::format!("{number} {name}"))
        .collect();
    if shown.is_empty() { String::from("none") } else { shown.join(", ") }
}
