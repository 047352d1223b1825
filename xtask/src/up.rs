//! `cargo xtask up`, `down` and `console`.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use announce::Announcement;
use anyhow::{Context as _, Result, bail};

use crate::archive::{self, Source};
use crate::disk;
use crate::guest;
use crate::kernel;
use crate::node::{
    BootTimes, DEFAULT_NAME, Endpoints, Folder, ForwardEndpoint, LOOPBACK, NetblkEndpoint, Running,
};
use crate::node::{free_forward, qemu_log};
use crate::progress::Step;
use crate::qemu::{self, Accelerator, Boot, DiskModel, Lifetime, Machine, MoreDisk, Nic, Protocol, Uplink};
use crate::requirements;
use crate::terminal::{self, ControlC, Ended};
use crate::workspace;

/// The options of `up`, as they are on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Return when the node is ready, and leave it running
    #[arg(long)]
    pub headless: bool,
    /// The disk's image; made if it is not there [default: target/nos/disk.img]
    #[arg(long, value_name = "FILE")]
    pub disk: Option<PathBuf>,
    /// The model of that disk
    #[arg(long, value_enum, default_value_t = DiskModel::Nvme)]
    pub disk_model: DiskModel,
    /// Bytes of its sectors: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value = "512", value_parser = qemu::parse_sector_bytes)]
    pub sector_bytes: u32,
    /// A disk more; made if it is not there. MODEL is nvme or virtio. May be given several times
    #[arg(long, value_name = "MODEL:SECTOR_BYTES:FILE")]
    pub more_disk: Vec<MoreDisk>,
    /// The model of the network card
    #[arg(long, value_enum, default_value_t = Nic::Virtio)]
    pub nic: Nic,
    /// What a virtio card says that its link carries, such as 9000; the user-mode network carries 1500
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(68..))]
    pub mtu: Option<u16>,
    /// How many CPUs the node has
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub smp: u32,
    /// How much memory the node has, such as 1G or 512M
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_memory_mib)]
    pub mem: u64,
    /// Who executes the node's instructions
    #[arg(long, value_enum, default_value_t = Accelerator::Auto)]
    pub accel: Accelerator,
    /// The node's configuration
    #[arg(long, value_name = "FILE", default_value = "nos.toml")]
    pub config: PathBuf,
    /// What this node is called here: several may be up at once
    #[arg(long, default_value = DEFAULT_NAME)]
    pub name: String,
}

impl Options {
    /// `up` with no options, for a node of this name.
    pub fn plain(name: &str) -> Options {
        Options {
            headless: true,
            disk: None,
            disk_model: DiskModel::Nvme,
            sector_bytes: 512,
            more_disk: Vec::new(),
            nic: Nic::Virtio,
            mtu: None,
            smp: 4,
            mem: 1024,
            accel: Accelerator::Auto,
            config: PathBuf::from("nos.toml"),
            name: name.to_owned(),
        }
    }
}

/// Sizes as QEMU takes them, and as nos.toml does; the result is in MiB.
fn parse_memory_mib(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let factor = match text[digits..].trim_start() {
        "M" | "MiB" => 1,
        "G" | "GiB" => 1024,
        _ => return Err("expected a size such as 1G or 512M".to_owned()),
    };
    let mib = text[..digits].parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    mib.filter(|mib| (32..=1 << 20).contains(mib)).ok_or_else(|| "expected 32M to 1024G".to_owned())
}

/// The longest that the node may take to be ready, guests included.
const PATIENCE: Duration = Duration::from_secs(180);

/// Builds, boots, and stays or returns.
pub fn up(options: &Options) -> Result<()> {
    let folder = Folder::new(&options.name)?;
    let lock = folder.lock()?;
    if let Some(process) = folder.running()? {
        bail!(
            "the node {} is up (process {}); `cargo xtask down{}` ends it",
            folder.name,
            process.pid,
            name_option(&folder)
        );
    }
    let (node, endpoints) = boot(options, &folder)?;
    print!("{}", summary(options, &endpoints));
    if options.headless {
        node.leave();
        drop(lock);
        return Ok(());
    }
    println!("This terminal is the node's console; Ctrl-\\ or Ctrl-C ends the node.\n");
    let (console, running) = node.into_console();
    let (stream, shown) = console.into_parts();
    let ended = terminal::attach(stream, &shown, ControlC::Ends)?;
    drop(running);
    match ended {
        Ended::ByPerson => println!("The node {} is down.", folder.name),
        Ended::ByNode => println!("The node {} has ended.", folder.name),
    }
    Ok(())
}

/// Everything up to the point where the node is ready.
pub fn boot(options: &Options, folder: &Folder) -> Result<(Running, Endpoints)> {
    requirements::ensure(&[requirements::QEMU, requirements::SETPRIV])?;
    let source = Source::read(&options.config)?;
    for problem in &source.problems {
        eprintln!("warning: {problem}");
    }
    let kernel = kernel::build()?;
    let files = if source.needs_demonstration_files() { Some(guest::build()?) } else { None };
    let archive_path = folder.file("boot.tar");
    let report = archive::write(&archive_path, &kernel, &source, files.as_ref())?;
    for name in &report.missing {
        eprintln!(
            "warning: {} names {name}, and there is no such file; the node will refuse its guest",
            options.config.display()
        );
    }
    let disk = options.disk.clone().unwrap_or_else(|| folder.file("disk.img"));
    if let Some(named) = &options.disk
        && !named.exists()
    {
        bail!("there is no disk image {0}; make one: truncate --size 1G {0}", named.display());
    }
    disk::ensure_image(&disk, disk::DEFAULT_BYTES)?;

    let boot = Boot::Direct { kernel: kernel.elf, archive: Some(archive_path), command_line: String::new() };
    let mut machine = Machine::new(&folder.name, folder.path.clone(), boot);
    machine.cpus = options.smp;
    machine.memory_mib = options.mem;
    machine.accelerator = options.accel;
    machine.nic = options.nic;
    machine.mtu = options.mtu;
    machine.disk = Some(disk);
    machine.disk_model = options.disk_model;
    machine.sector_bytes = options.sector_bytes;
    for more in &options.more_disk {
        disk::ensure_image(&more.image, disk::DEFAULT_BYTES)?;
    }
    machine.more_disks = options.more_disk.clone();
    let lifetime = if options.headless { Lifetime::Own } else { Lifetime::OfThisThread };

    let step = Step::begin("boot the node");
    let started = Instant::now();
    let (mut node, endpoints) = start_with_free_ports(&mut machine, &source, folder, lifetime)?;
    let times = watch_boot(&mut node, &source, started, &step)?;
    step.done(format!("shell after {:.2} s", seconds(times.shell_ms)));
    let endpoints = Endpoints { boot: times, ..endpoints };
    let text = serde_json::to_string_pretty(&endpoints).context("writing endpoints.json")?;
    workspace::write_if_changed(&folder.endpoints_file(), format!("{text}\n").as_bytes())?;
    Ok((node, endpoints))
}

/// Between the choice of a port and its use another program may take it; then others are chosen.
fn start_with_free_ports(
    machine: &mut Machine,
    source: &Source,
    folder: &Folder,
    lifetime: Lifetime,
) -> Result<(Running, Endpoints)> {
    const TRIES: usize = 5;
    let mut tries = 0;
    loop {
        tries += 1;
        let mut forwards = Vec::new();
        let mut netblk = Vec::new();
        let mut guests = Vec::new();
        for service in &source.config.netblk {
            let forward = free_forward(Protocol::Udp, service.port, &forwards)?;
            forwards.push(forward);
            netblk.push(NetblkEndpoint {
                disk: service.disk.clone(),
                address: LOOPBACK.to_owned(),
                port: forward.host_port,
            });
        }
        for forward in &source.config.forwards {
            let host = free_forward(Protocol::Tcp, forward.port, &forwards)?;
            forwards.push(host);
            guests.push(ForwardEndpoint {
                guest: forward.guest.clone(),
                guest_port: forward.guest_port,
                address: LOOPBACK.to_owned(),
                port: host.host_port,
            });
        }
        machine.uplink = Uplink::User { forwards };
        match Running::start(machine, folder.clone(), lifetime) {
            Ok(node) => {
                let shown = |name: &str| folder.file(name).display().to_string();
                let endpoints = Endpoints {
                    name: folder.name.clone(),
                    pid: node.pid(),
                    log: shown(qemu::CONSOLE_LOG),
                    console: format!("unix:{}", shown(qemu::CONSOLE_SOCKET)),
                    qmp: format!("unix:{}", shown(qemu::QMP_SOCKET)),
                    netblk,
                    forwards: guests,
                    boot: BootTimes::default(),
                };
                return Ok((node, endpoints));
            }
            Err(_) if tries < TRIES && qemu_log(folder).contains("host forwarding rule") => {}
            Err(error) => return Err(error),
        }
    }
}

/// Follows the console until everything that the configuration starts has started, or has said that it will not.
fn watch_boot(node: &mut Running, source: &Source, started: Instant, step: &Step) -> Result<BootTimes> {
    let deadline = started + PATIENCE;
    let mut times = BootTimes::default();
    let mut configured = false;
    let mut waiting: BTreeMap<&str, &str> = source
        .config
        .guests
        .iter()
        .filter(|guest| guest.autostart)
        .map(|guest| (guest.name.as_str(), "is not started"))
        .collect();
    let since_start = || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    while !configured || !waiting.is_empty() {
        let Some(line) = node.console.next_line(deadline)? else {
            let missing: Vec<String> =
                waiting.iter().map(|(guest, state)| format!("guest {guest} {state}")).collect();
            bail!(
                "the node is not ready after {} s: {}\n{}",
                PATIENCE.as_secs(),
                if missing.is_empty() {
                    "its configuration is not done".to_owned()
                } else {
                    missing.join(", ")
                },
                node.console.transcript()
            );
        };
        step.note(&line);
        match Announcement::parse(&line) {
            Some(Announcement::ShellReady { at_ms }) => {
                times.shell_ms = since_start();
                step.say(&format!(
                    "shell ready {:.2} s after the emulator's start ({:.2} s on the node's own clock)",
                    seconds(times.shell_ms),
                    seconds(at_ms)
                ));
            }
            Some(Announcement::ConfigurationDone { .. }) => configured = true,
            Some(Announcement::GuestStarted { guest, .. }) => {
                if let Some(state) = waiting.get_mut(guest) {
                    *state = "has not said that it is ready";
                }
            }
            Some(Announcement::GuestReady { guest, at_ms }) => {
                waiting.remove(guest);
                times.guests_ms.insert(guest.to_owned(), since_start());
                step.say(&format!(
                    "guest {guest} ready after {:.2} s ({:.2} s on the node's own clock)",
                    seconds(since_start()),
                    seconds(at_ms)
                ));
            }
            Some(Announcement::GuestStopped { guest, reason }) => {
                waiting.remove(guest);
                step.say(&format!("guest {guest} stopped: {reason}"));
            }
            Some(Announcement::Refused { what, reason }) => {
                if let Some(guest) = what.strip_prefix("guest ") {
                    waiting.remove(guest);
                }
                step.say(&format!("the node refuses {what}: {reason}"));
            }
            Some(Announcement::Panic { .. }) => {
                // The backtrace is still to come; a kernel that has panicked prints no more after it.
                let last = Instant::now() + Duration::from_secs(3);
                while let Ok(Some(_)) = node.console.next_line(last) {}
                bail!("the node's kernel panicked:\n{}", node.console.transcript());
            }
            Some(Announcement::PowerOff) => {
                bail!("the node switched itself off:\n{}", node.console.transcript())
            }
            Some(
                Announcement::Address { .. } | Announcement::Netblk { .. } | Announcement::Forward { .. },
            )
            | None => {}
        }
    }
    Ok(times)
}

fn seconds(ms: u64) -> f64 {
    // Exact: no boot takes 2^53 ms.
    ms as f64 / 1000.0
}

fn name_option(folder: &Folder) -> String {
    if folder.name == DEFAULT_NAME { String::new() } else { format!(" --name {}", folder.name) }
}

/// What is reachable, and how.
fn summary(options: &Options, endpoints: &Endpoints) -> String {
    let accelerator = match options.accel {
        Accelerator::Kvm => "KVM",
        Accelerator::Auto if qemu::kvm_is_usable() => "KVM",
        Accelerator::Auto | Accelerator::Tcg => "TCG",
    };
    let name =
        if endpoints.name == DEFAULT_NAME { String::new() } else { format!(" --name {}", endpoints.name) };
    let mut rows = vec![(
        "shell".to_owned(),
        format!("cargo xtask console{name}"),
        "help lists the commands".to_owned(),
    )];
    for service in &endpoints.netblk {
        let (address, port) = (&service.address, service.port);
        rows.push((
            format!("disk {}", service.disk),
            format!("UDP {address}:{port}"),
            format!("cargo run -p netblk -- info {address}:{port}"),
        ));
    }
    for forward in &endpoints.forwards {
        let (address, port) = (&forward.address, forward.port);
        let try_it =
            if forward.guest_port == 80 { format!("curl http://{address}:{port}/") } else { String::new() };
        let what = format!("guest {} port {}", forward.guest, forward.guest_port);
        rows.push((what, format!("TCP {address}:{port}"), try_it));
    }
    rows.push(("log".to_owned(), endpoints.log.clone(), String::new()));
    rows.push(("to end it".to_owned(), format!("cargo xtask down{name}"), String::new()));
    let widths = [
        rows.iter().map(|row| row.0.len()).max().unwrap_or(0),
        rows.iter().map(|row| row.1.len()).max().unwrap_or(0),
    ];
    let mut text = format!(
        "\nThe node {} is up: {} CPUs, {} MiB, QEMU with {accelerator}, process {}.\n\n",
        endpoints.name, options.smp, options.mem, endpoints.pid
    );
    for (what, how, try_it) in rows {
        let row = format!("  {what:<0$}   {how:<1$}   {try_it}", widths[0], widths[1]);
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Ends a node.
pub fn down(name: &str) -> Result<()> {
    let folder = Folder::new(name)?;
    match folder.running()? {
        Some(process) => {
            process.end()?;
            println!("The node {name} is down.");
        }
        None => println!("No node {name} is up."),
    }
    folder.clear();
    Ok(())
}

/// Attaches the terminal to a node that is up.
pub fn console(name: &str) -> Result<()> {
    let folder = Folder::new(name)?;
    if folder.running()?.is_none() {
        bail!("no node {name} is up; `cargo xtask up{}` boots it", name_option(&folder));
    }
    let socket = folder.file(qemu::CONSOLE_SOCKET);
    let mut stream =
        UnixStream::connect(&socket).with_context(|| format!("connecting to {}", socket.display()))?;
    println!("The console of the node {name}; Ctrl-\\ leaves it.");
    // An empty line makes the shell show its prompt.
    std::io::Write::write_all(&mut stream, b"\r").context("writing to the console")?;
    match terminal::attach(stream, b"", ControlC::GoesToNode)? {
        Ended::ByPerson => println!("The node {name} is still up."),
        Ended::ByNode => println!("The node {name} has ended."),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_understood_in_qemus_and_in_our_notation() {
        assert_eq!(parse_memory_mib("1G"), Ok(1024));
        assert_eq!(parse_memory_mib("512M"), Ok(512));
        assert_eq!(parse_memory_mib("2 GiB"), Ok(2048));
        for wrong in ["", "1", "G", "1T", "1K", "16M", "99999999999999999999G"] {
            assert!(parse_memory_mib(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_summary_names_every_way_in() {
        let endpoints = Endpoints {
            name: "lab".into(),
            pid: 1,
            log: "target/nos/lab/console.log".into(),
            console: String::new(),
            qmp: String::new(),
            netblk: vec![NetblkEndpoint { disk: "nvme0n1".into(), address: LOOPBACK.into(), port: 10809 }],
            forwards: vec![ForwardEndpoint {
                guest: "alpha".into(),
                guest_port: 80,
                address: LOOPBACK.into(),
                port: 8080,
            }],
            boot: BootTimes::default(),
        };
        let text = summary(&Options::plain("lab"), &endpoints);
        for part in [
            "cargo xtask console --name lab",
            "UDP 127.0.0.1:10809",
            "curl http://127.0.0.1:8080/",
            "cargo xtask down --name lab",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
