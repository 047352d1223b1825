//! The node against Linux, on the same emulated machine.
//!
//! Both are up at the same time, with two CPUs, the same memory, the same card on a cable of its own, and the same
//! disk; one is measured while the other idles. (The alternative, starting them in turn, would put minutes between
//! figures that are compared, and a host's other load changes within minutes. What an idle machine costs is measured
//! with every figure.) A round measures every case of every service once, the services one right after the other and in
//! every round in another order; then the next round begins. So what drifts, drifts for all.
//!
//! | module | |
//! |---|---|
//! | `cases` | services, patterns, windows |
//! | `node`, `linux` | the two machines |
//! | `image` | their disks; their cables are [`crate::link`]s |
//! | `generator` | the program that asks, for all services the same |
//! | `host` | what else the host did meanwhile |
//! | `results`, `goals`, `table`, `plot`, `document` | what came of it |

mod cases;
mod document;
mod generator;
mod goals;
mod host;
mod image;
mod linux;
mod node;
mod plot;
mod results;
mod table;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::bench::{self, Options, figures_file};
use crate::link::Link;
use crate::node::Folder;
use crate::progress::Step;
use crate::qemu::{Machine, Nic, Protocol};
use crate::requirements;
use crate::workspace;

use cases::{Case, Pattern, Service, Timing};
use generator::{Figures, Generator};
use image::Image;
use linux::Linux;
use node::Node;
use results::{Fairness, Measurement, Results};

/// How much of the disk is asked for: it fits into the memory of a machine, so that a server with a cache answers from
/// its cache.
const RANGE_MIB: u32 = 256;
const CPUS: u32 = 2;
const MEMORY_MIB: u64 = 2048;

/// What both machines are: all that is compared runs on this.
fn same_for_both(machine: &mut Machine, nic: Nic, image: &Path, link: &Link) {
    machine.cpus = CPUS;
    machine.memory_mib = MEMORY_MIB;
    machine.nic = nic;
    machine.disk = Some(image.to_owned());
    machine.uplink = link.uplink();
}

pub fn measure(options: &Options) -> Result<()> {
    requirements::ensure(&[requirements::QEMU, requirements::SETPRIV])?;
    // Two of these at once would measure each other.
    let folder = Folder::new("bench")?;
    let _lock = folder.lock()?;
    let generator = Generator::build()?;
    let (runs, timing) = if options.quick { (1, Timing::QUICK) } else { (options.runs, Timing::FULL) };
    let mut results = Results::new(bench::machine(), runs, timing);
    let nics = options.nic.map_or_else(|| vec![Nic::Virtio, Nic::Igb], |nic| vec![nic]);
    for nic in nics {
        session(nic, &folder.path, &generator, &mut results)
            .with_context(|| format!("with {}", results::nic_label(nic)))?;
    }
    let json = serde_json::to_string_pretty(&results).context("writing the figures")?;
    workspace::write_if_changed(&figures_file("netblk.json"), format!("{json}\n").as_bytes())?;
    let plots = plot::all(&results).context("drawing the plots")?;
    for (name, svg) in &plots {
        workspace::write_if_changed(&figures_file(name), svg.as_bytes())?;
    }
    let text = table::markdown(&results);
    workspace::write_if_changed(&figures_file("netblk.md"), format!("# netblk\n\n{text}").as_bytes())?;
    println!("{text}\n{}, .json, .svg", figures_file("netblk.md").display());
    if options.record {
        document::record(&text, &plots)?;
    }
    Ok(())
}

/// Both machines with one card.
fn session(nic: Nic, folder: &Path, generator: &Generator, results: &mut Results) -> Result<()> {
    let node_image = Image::make("node", folder)?;
    let linux_image = Image::make("linux", folder)?;
    let mut node = Node::boot(nic, &node_image.path)?;
    let mut linux = Linux::boot(nic, &linux_image.path, generator)?;
    results.conditions(nic, &node, &linux);
    host::settle(linux.pid())?;
    let (timing, runs) = (results.timing, results.runs);
    for run in 0..runs {
        let step = Step::begin(format!("{}, round {} of {runs}", results::nic_label(nic), run + 1));
        for case in Case::all() {
            let mut services = Service::of(nic).to_vec();
            let rotation = run as usize % services.len();
            services.rotate_left(rotation);
            for service in services {
                if !node.has_floors
                    && matches!(service, Service::NodeEcho | Service::NodeDisk | Service::NodeBoth)
                {
                    continue;
                }
                step.note(&format!("{}, {}, window {}", service.label(), case.pattern.label(), case.window));
                let seed = u64::from(run) + 1;
                let mut again = || take(service, &case, timing, seed, generator, &mut node, &mut linux);
                // What a busy host breaks once must not cost everything measured so far; what is broken breaks again.
                let measurement = again()
                    .or_else(|error| {
                        step.say(&format!("once more: {error:#}"));
                        again()
                    })
                    .with_context(|| {
                        format!("{}, {}, window {}", service.label(), case.pattern.label(), case.window)
                    })?;
                results.measurements.push(Measurement { nic, run, ..measurement });
            }
        }
        step.done("");
    }
    if nic == Nic::Virtio {
        results.fairness = Some(fairness(generator, &linux, runs, timing)?);
    }
    Ok(())
}

/// Measures one case of one service.
fn take(
    service: Service,
    case: &Case,
    timing: Timing,
    seed: u64,
    generator: &Generator,
    node: &mut Node,
    linux: &mut Linux,
) -> Result<Measurement> {
    let (measured, waiting) =
        if service.on_node() { (node.pid(), linux.pid()) } else { (linux.pid(), node.pid()) };
    let is_netblk = matches!(service, Service::Netblk | Service::Netblk2);
    if is_netblk {
        node.traffic()?;
    }
    let before = host::Sample::take(measured, waiting)?;
    let figures: Figures = match service {
        Service::NodeDisk => node.disk(case, timing)?,
        Service::LinuxDisk => linux.disk(case, timing)?,
        Service::NodeBoth => both(case, timing, seed, generator, node)?,
        Service::Netblk | Service::Netblk2 => {
            let scheme = if service == Service::Netblk { "netblk" } else { "netblk2" };
            let target = format!("{scheme}://{}", node.link.reach(Protocol::Udp, node::NETBLK_PORT));
            generator.measure(&target, case, timing, seed)?
        }
        Service::NodeEcho => generator.measure(&node.echo(), case, timing, seed)?,
        Service::NbdServer | Service::QemuNbd | Service::Nvmet | Service::LinuxEcho => {
            let target = linux.target(service).context("a service of Linux's")?;
            generator.measure(&target, case, timing, seed)?
        }
    };
    let after = host::Sample::take(measured, waiting)?;
    let traffic = if is_netblk { Some(node.traffic()?) } else { None };
    if service == Service::NbdServer && case.pattern.writes() {
        linux.settle()?;
    }
    let load = before.until(&after, figures.cpu_seconds);
    // Card and round are the caller's to fill in.
    Ok(Measurement { nic: Nic::Virtio, service, case: *case, run: 0, figures, load, traffic })
}

/// The node's echo and its disk at the same time: the slower of the two.
fn both(case: &Case, timing: Timing, seed: u64, generator: &Generator, node: &mut Node) -> Result<Figures> {
    let echo = node.echo();
    let (disk, echo) = std::thread::scope(|scope| {
        let echo = scope.spawn(|| generator.measure(&echo, case, timing, seed));
        (node.disk(case, timing), echo.join())
    });
    let (disk, echo) = (disk?, echo.map_err(|_| anyhow::anyhow!("the generator's thread panicked"))??);
    let used = echo.cpu_seconds;
    let slower = if disk.per_second < echo.per_second { disk } else { echo };
    Ok(Figures { cpu_seconds: used, ..slower })
}

/// The same service by the generator and by fio, in turn: whether the generator is fair.
fn fairness(generator: &Generator, linux: &Linux, runs: u32, timing: Timing) -> Result<Vec<Fairness>> {
    let step = Step::begin("compare the generator with fio");
    let target = linux.target(Service::NbdServer).context("nbd-server is Linux's")?;
    let mut fairness = Vec::new();
    for window in cases::WINDOWS {
        let case = Case { pattern: Pattern::Read1K, window };
        let mut one = Fairness { case, generator: Vec::new(), fio: Vec::new() };
        for run in 0..runs {
            one.generator.push(generator.measure(&target, &case, timing, u64::from(run) + 1)?);
            one.fio.push(linux.nbd_server_by_fio(&case, timing)?);
        }
        fairness.push(one);
    }
    step.done("");
    Ok(fairness)
}
