//! From the text to [`Config`]: which sections there are, what each key means.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::Problem;
use crate::section::{Cost, Report, Section, expected_key, quoted, show};
use crate::value::{Ipv4Cidr, is_device_name, is_file_name, is_name, is_unicast, netblk_key, size_bytes};
use crate::{
    Config, Forward, Guest, GuestDisk, GuestNetwork, MAX_GUEST_CPUS, MAX_GUEST_DISKS, NetblkService, Node,
    NodeAddress,
};

/// A configuration larger than this is not read: it is not one.
const MOST_TEXT_BYTES: usize = 256 << 10;
/// Guest RAM is given out in pieces of this size.
const MEMORY_PIECE_BYTES: u64 = 2 << 20;
const LEAST_MEMORY_BYTES: u64 = 16 << 20;
const MOST_MEMORY_BYTES: u64 = 1 << 40;
/// Linux keeps 2048 bytes for its command line (COMMAND_LINE_SIZE on x86); this leaves room for the words that
/// `Config::guest_command_line` adds.
const MOST_COMMAND_LINE_BYTES: usize = 1024;

/// A configuration needs two; the parser takes about 60 on a task's stack.
const MOST_DEPTH: usize = 16;

const SECTIONS: [&str; 5] = ["node", "switch", "guest", "netblk", "forward"];

/// Reads `nos.toml`: what is usable of it, and what is not.
pub fn parse(file: &[u8]) -> (Config, Vec<Problem>) {
    let mut config = Config::default();
    let (text, whole) = match core::str::from_utf8(file) {
        Ok(text) => (text, true),
        // The part before the first byte that is not UTF-8 gives the place of the mistake.
        Err(error) => (core::str::from_utf8(&file[..error.valid_up_to()]).unwrap_or_default(), false),
    };
    let mut report = Report::new(text);
    let defaults = "the node runs with its defaults".to_owned();
    if !whole {
        let byte = file.get(text.len()).copied().unwrap_or(0);
        report.add(text.len(), format!("the byte {byte:#04x}"), "UTF-8 text".to_owned(), defaults);
        return (config, report.into_problems());
    }
    if text.len() > MOST_TEXT_BYTES {
        report.add(0, format!("{} bytes", text.len()), format!("at most {MOST_TEXT_BYTES}"), defaults);
        return (config, report.into_problems());
    }
    if let Some(offset) = too_deep(text) {
        let expected = format!("at most {MOST_DEPTH} brackets within each other");
        report.add(offset, "one more bracket".to_owned(), expected, defaults);
        return (config, report.into_problems());
    }
    let documents = match DeTable::parse(text) {
        Ok(document) => vec![(0, document)],
        // A mistake in the grammar costs its section. Reading section by section finds which one it is.
        Err(_) => sections(text)
            .into_iter()
            .filter_map(|(base, piece)| match DeTable::parse(piece) {
                Ok(document) => Some((base, document)),
                Err(error) => {
                    syntax_problem(&error, piece, base, &mut report);
                    None
                }
            })
            .collect(),
    };
    read_documents(&documents, &mut report, &mut config);
    (config, report.into_problems())
}

/// Where brackets stand deeper within each other than [`MOST_DEPTH`]. The parser calls itself for each, and a kernel's
/// stack is small. Brackets in strings and comments do not count.
fn too_deep(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut comment, mut escaped) = (0_usize, None, false, false);
    for (offset, letter) in text.bytes().enumerate() {
        if letter == b'\n' {
            // Brackets in the further lines of a string count, too: a configuration has no use for many there.
            (quote, comment, escaped) = (None, false, false);
            continue;
        }
        match (comment, quote) {
            (true, _) => {}
            (false, Some(open)) => {
                if !escaped && letter == open {
                    quote = None;
                }
                escaped = !escaped && open == b'"' && letter == b'\\';
            }
            (false, None) => match letter {
                b'"' | b'\'' => quote = Some(letter),
                b'#' => comment = true,
                b'[' | b'{' => {
                    depth += 1;
                    if depth > MOST_DEPTH {
                        return Some(offset);
                    }
                }
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
    }
    None
}

/// Cuts the text before every line that is a section's header. Each piece comes with its offset.
fn sections(text: &str) -> Vec<(usize, &str)> {
    let mut pieces = Vec::new();
    let mut piece_start = 0;
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let header = line.trim_start().strip_prefix('[');
        let name = header.map(|rest| rest.trim_start_matches('[').trim_start());
        let is_header = name.is_some_and(|name| SECTIONS.iter().any(|section| name.starts_with(section)));
        if is_header && line_start > piece_start {
            pieces.push((piece_start, &text[piece_start..line_start]));
            piece_start = line_start;
        }
        line_start += line.len();
    }
    pieces.push((piece_start, &text[piece_start..]));
    pieces
}

fn syntax_problem(error: &toml::de::Error, piece: &str, base: usize, report: &mut Report<'_>) {
    let offset = base + error.span().map_or(0, |span| span.start);
    let (found, expected) = match error.message().split_once(", expected ") {
        Some((found, "nothing")) => (found.to_owned(), "nothing there".to_owned()),
        Some((found, expected)) => (found.to_owned(), expected.to_owned()),
        None => (error.message().to_owned(), "TOML: a [section], or key = value".to_owned()),
    };
    let header = piece.trim_start().lines().next().unwrap_or_default();
    let consequence = if header.starts_with('[') {
        format!("the section {} is left out", quoted(header))
    } else {
        "the lines before the first section are left out".to_owned()
    };
    report.add(offset, found, expected, consequence);
}

/// Reads the sections in the order in which they need each other: a guest's address is checked against the switch's,
/// a forward against the guests. The order in the file is free.
fn read_documents(documents: &[(usize, Spanned<DeTable<'_>>)], report: &mut Report<'_>, config: &mut Config) {
    let mut read_section = |name: &str, read: &mut dyn FnMut(&mut Report<'_>, Entry<'_, '_>)| {
        for (base, document) in documents {
            if let Some((key, value)) = document.get_ref().get_key_value(name) {
                let value = Entry { value, base: *base, offset: base + key.span().start };
                read(report, value);
            }
        }
    };
    read_section("node", &mut |report, entry| {
        if let Some((table, offset)) = entry.table("[node]", report) {
            let section = Section::new(report, table, offset, entry.base, Cost::Setting);
            read_node(section, &mut config.node);
        }
    });
    read_section("switch", &mut |report, entry| {
        if let Some((table, offset)) = entry.table("[switch]", report) {
            let mut section = Section::new(report, table, offset, entry.base, Cost::Setting);
            if let Some(address) = section.text("address", CIDR, Ipv4Cidr::parse) {
                config.switch.address = address;
            }
            section.finish();
        }
    });
    read_section("guest", &mut |report, entry| {
        entry.each("[[guest]]", report, |report, entry, table, offset| {
            let cost = Cost::Entry(entry_name("guest", table, "name"));
            read_guest(Section::new(report, table, offset, entry.base, cost), config);
        });
    });
    read_section("netblk", &mut |report, entry| {
        entry.each("[[netblk]]", report, |report, entry, table, offset| {
            let cost = Cost::Entry("this netblk service".to_owned());
            read_netblk(Section::new(report, table, offset, entry.base, cost), config);
        });
    });
    read_section("forward", &mut |report, entry| {
        entry.each("[[forward]]", report, |report, entry, table, offset| {
            let cost = Cost::Entry("this forward".to_owned());
            read_forward(Section::new(report, table, offset, entry.base, cost), config);
        });
    });
    for (base, document) in documents {
        for (key, _) in document.get_ref().iter() {
            let name: &str = key.get_ref();
            if !SECTIONS.contains(&name) {
                report.add(
                    base + key.span().start,
                    format!("the unknown section {}", quoted(name)),
                    expected_key(name, &SECTIONS),
                    "it is ignored".to_owned(),
                );
            }
        }
    }
}

/// The value of a key at the top of the file, which ought to be a section.
struct Entry<'v, 'd> {
    value: &'v Spanned<DeValue<'d>>,
    /// Where the piece of text begins that the value's spans count from.
    base: usize,
    offset: usize,
}

impl<'v, 'd> Entry<'v, 'd> {
    fn table(&self, section: &str, report: &mut Report<'_>) -> Option<(&'v DeTable<'d>, usize)> {
        let table = self.value.get_ref().as_table();
        if table.is_none() {
            let expected = format!("the section {section}");
            report.add(self.offset, show(self.value.get_ref()), expected, "it is ignored".to_owned());
        }
        table.map(|table| (table, self.offset))
    }

    /// Every entry of an array of tables.
    fn each(
        &self,
        section: &str,
        report: &mut Report<'_>,
        mut read: impl FnMut(&mut Report<'_>, &Self, &'v DeTable<'d>, usize),
    ) {
        let DeValue::Array(entries) = self.value.get_ref() else {
            let expected = format!("{section}, with two brackets: there may be several");
            report.add(self.offset, show(self.value.get_ref()), expected, "it is ignored".to_owned());
            return;
        };
        for value in entries.iter() {
            let entry = Entry { value, base: self.base, offset: self.base + value.span().start };
            if let Some((table, offset)) = entry.table(section, report) {
                read(report, self, table, offset);
            }
        }
    }
}

/// What a link may carry: the least that IPv4 asks for (RFC 791 section 3.2), and the usual jumbo packet.
const LINK_BYTES: core::ops::Range<u64> = 68..9001;

const CIDR: &str = "an address with its prefix, such as \"10.77.0.1/24\"";
const NAME: &str = "a name of letters, digits and hyphens, at most 31";
const PORT: &str = "a port from 1 to 65535";
const FILE: &str = "the name of a file in the boot archive, such as \"guests/vmlinuz\"";
const FLAG: &str = "true or false";

fn read_node(mut section: Section<'_, '_, '_>, node: &mut Node) {
    if let Some(name) = section.text("name", NAME, |text| is_name(text).then(|| text.to_owned())) {
        node.name = name;
    }
    const ADDRESS: &str = "\"dhcp\", or an address with its prefix, such as \"192.0.2.7/24\"";
    if let Some(mtu) = section.integer("mtu", LINK_BYTES, "68 to 9000 bytes") {
        // At most 9000.
        node.mtu = mtu as u16;
    }
    let address = section.text("address", ADDRESS, |text| match text {
        "dhcp" => Some(None),
        _ => Ipv4Cidr::parse(text).map(Some),
    });
    let gateway = section.text("gateway", "an address, such as \"192.0.2.1\"", parse_unicast);
    match (address.flatten(), gateway) {
        (Some(address), Some(gateway)) if !address.is_host(gateway) || gateway == address.address() => {
            node.address = NodeAddress::Fixed { address, gateway: None };
            let expected = format!("another address of the node's own network, {address}");
            section.wrong("gateway", format!("gateway = \"{gateway}\""), &expected);
        }
        (Some(address), gateway) => node.address = NodeAddress::Fixed { address, gateway },
        (None, Some(gateway)) => {
            let found = format!("gateway = \"{gateway}\" without a fixed address");
            section.wrong(
                "gateway",
                found,
                "a fixed address beside it: with \"dhcp\" the gateway comes by DHCP",
            );
        }
        (None, None) => {}
    }
    section.finish();
}

fn parse_unicast(text: &str) -> Option<Ipv4Addr> {
    text.parse().ok().filter(|address| is_unicast(*address))
}

/// What an entry is called in messages: by its name if it has one that can be shown.
fn entry_name(kind: &str, table: &DeTable<'_>, key: &str) -> String {
    match table.get(key).map(Spanned::get_ref) {
        Some(DeValue::String(name)) if is_name(name) => format!("{kind} {name}"),
        _ => format!("this {kind}"),
    }
}

fn read_guest(mut section: Section<'_, '_, '_>, config: &mut Config) {
    let name = section.text("name", NAME, |text| is_name(text).then(|| text.to_owned()));
    let name = section.require("name", NAME, name);
    let cpus = section.integer("cpus", 1..MAX_GUEST_CPUS + 1, "a number of CPUs from 1 to 16");
    const MEMORY: &str = "a size from 16 MiB in steps of 2 MiB, such as \"256 MiB\"";
    let memory_bytes = section.text("memory", MEMORY, |text| {
        size_bytes(text).filter(|bytes| {
            (LEAST_MEMORY_BYTES..=MOST_MEMORY_BYTES).contains(bytes) && bytes % MEMORY_PIECE_BYTES == 0
        })
    });
    let memory_bytes = section.require("memory", MEMORY, memory_bytes);
    let file = |text: &str| is_file_name(text).then(|| text.to_owned());
    let kernel = section.text("kernel", FILE, file);
    let kernel = section.require("kernel", FILE, kernel);
    let initrd = section.text("initrd", FILE, file);
    let command_line = section.text("command_line", "printable ASCII, at most 1024 characters", |text| {
        let printable = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        (text.len() <= MOST_COMMAND_LINE_BYTES && printable).then(|| text.to_owned())
    });
    let switch = config.switch.address;
    let plugged = section.text("network", "\"switch\" or \"none\"", |text| match text {
        "switch" => Some(true),
        "none" => Some(false),
        _ => None,
    });
    let address = section.text("address", "an address, such as \"10.77.0.2\"", parse_unicast);
    let disks = section.value_of("disk", DISKS, guest_disks);
    let autostart = section.flag("autostart", FLAG);

    if let Some(address) = address {
        let taken = config.guests.iter().find(|other| other.network.address() == Some(address));
        let found = format!("address = \"{address}\"");
        if plugged == Some(false) {
            section.wrong("address", found, "none beside network = \"none\"");
        } else if !switch.is_host(address) {
            section.wrong("address", found, &format!("an address of the switch's network, {switch}"));
        } else if address == switch.address() {
            section.wrong("address", found, "another one: this is the node's own on the switch");
        } else if let Some(other) = taken {
            section.wrong("address", found, &format!("another one: guest {} has it", other.name));
        }
    }
    // Two names for the same sectors are found out by the node, which knows its disks.
    let list = disks.as_deref().unwrap_or_default();
    let seen_before =
        |place: usize, disk: &GuestDisk| list[..place].iter().any(|other| other.name == disk.name);
    let twice = list.iter().enumerate().find(|&(place, disk)| seen_before(place, disk));
    if let Some((_, disk)) = twice {
        section.wrong("disk", format!("{} twice", quoted(&disk.name)), "each disk once");
    }
    if let Some(name) = &name
        && config.guest(name).is_some()
    {
        section.wrong("name", format!("a second guest called \"{name}\""), "a name of its own");
    }
    if section.finish()
        && let (Some(name), Some(memory_bytes), Some(kernel)) = (name, memory_bytes, kernel)
    {
        let network =
            if plugged == Some(false) { GuestNetwork::None } else { GuestNetwork::Switch { address } };
        config.guests.push(Guest {
            name,
            cpus: cpus.map_or(1, small),
            memory_bytes,
            kernel,
            initrd,
            command_line: command_line.unwrap_or_default(),
            network,
            disks: disks.unwrap_or_default(),
            autostart: autostart.unwrap_or(false),
        });
    }
}

const DISKS: &str = "a disk, such as \"nvme0n1p1\", or up to 8 in brackets, each a name or { name = \"nvme0n1p2\", read_only = true }";

fn guest_disks(value: &DeValue<'_>) -> Option<Vec<GuestDisk>> {
    let entries = match value {
        DeValue::Array(entries) => entries,
        _ => return Some(vec![guest_disk(value)?]),
    };
    let few = entries.len() <= MAX_GUEST_DISKS;
    few.then(|| entries.iter().map(|entry| guest_disk(entry.get_ref())).collect())?
}

/// A name, or a table of `name` and `read_only` and nothing else.
fn guest_disk(value: &DeValue<'_>) -> Option<GuestDisk> {
    let (name, read_only) = match value {
        DeValue::Table(table) => {
            let known = table.iter().all(|(key, _)| matches!(key.get_ref().as_ref(), "name" | "read_only"));
            let name = table.get("name").filter(|_| known)?.get_ref().as_str()?;
            let read_only = table.get("read_only").map_or(Some(false), |flag| flag.get_ref().as_bool())?;
            (name, read_only)
        }
        _ => (value.as_str()?, false),
    };
    is_device_name(name).then(|| GuestDisk { name: name.to_owned(), read_only })
}

/// A number whose range was checked where it was read.
fn small<N: TryFrom<u64> + Default>(number: u64) -> N {
    N::try_from(number).unwrap_or_default()
}

fn port(section: &mut Section<'_, '_, '_>, key: &'static str) -> Option<u16> {
    let port = section.integer(key, 1..65536, PORT).map(small);
    section.require(key, PORT, port)
}

fn read_netblk(mut section: Section<'_, '_, '_>, config: &mut Config) {
    const DISK: &str = "a disk, such as \"nvme0n1\"";
    let device = |text: &str| is_device_name(text).then(|| text.to_owned());
    let disk = section.text("disk", DISK, device);
    let disk = section.require("disk", DISK, disk);
    let port = port(&mut section, "port");
    let read_only = section.flag("read_only", FLAG).unwrap_or(false);
    let nic = section.text("nic", "a network card, such as \"eth0\"", device);
    // 576: what every IPv4 host must be able to take (RFC 791 section 3.1).
    let mtu = section.integer("mtu", 576..9217, "a number of bytes from 576 to 9216").map(small);
    let cpu = section.integer("cpu", 0..MAX_GUEST_CPUS, "a CPU from 0 to 15").map(small);
    let poll_us = section.integer("poll_us", 0..1_000_001, "microseconds from 0 to 1000000").map(small);
    let allow = section.text("allow", "networks, such as \"192.0.2.0/24,10.0.0.7\"", |text| {
        text.split(',').map(|network| Ipv4Cidr::parse_network(network.trim())).collect()
    });
    let key = section.secret("key", "64 hexadecimal digits", netblk_key);
    if let Some(port) = port
        && config.netblk.iter().any(|other| other.port == port)
    {
        section.wrong("port", format!("port {port} a second time"), "a port of its own");
    }
    if section.finish()
        && let (Some(disk), Some(port)) = (disk, port)
    {
        config.netblk.push(NetblkService { disk, port, read_only, nic, mtu, cpu, poll_us, allow, key });
    }
}

fn read_forward(mut section: Section<'_, '_, '_>, config: &mut Config) {
    const GUEST: &str = "the name of a guest of this file that has an address";
    let port_number = port(&mut section, "port");
    let guest = section.text("guest", GUEST, |text| is_name(text).then(|| text.to_owned()));
    let guest = section.require("guest", GUEST, guest);
    let guest_port = port(&mut section, "guest_port");
    if let Some(port) = port_number
        && config.forwards.iter().any(|other| other.port == port)
    {
        section.wrong("port", format!("port {port} a second time"), "a port of its own");
    }
    if let Some(name) = &guest {
        match config.guest(name).map(|guest| guest.network.address()) {
            Some(Some(_)) => {}
            Some(None) => section.wrong("guest", format!("guest {name}, which has no address"), GUEST),
            None => section.wrong("guest", format!("guest {name}, which is not there or left out"), GUEST),
        }
    }
    if section.finish()
        && let (Some(port), Some(guest), Some(guest_port)) = (port_number, guest, guest_port)
    {
        config.forwards.push(Forward { port, guest, guest_port });
    }
}
