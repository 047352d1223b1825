//! Linux on the same machine, with the servers that the node is compared with.

pub mod root;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::link::Link;
use crate::node::{Folder, Running};
use crate::progress::Step;
use crate::qemu::{Boot, Lifetime, Machine, Nic, Protocol};
use crate::run;

use super::cases::{Case, Service, Timing};
use super::generator::{Figures, Generator};
use root::Root;

// As init.sh has them.
const NBD_SERVER_PORT: u16 = 10810;
const QEMU_NBD_PORT: u16 = 10811;
const NVMET_PORT: u16 = 4420;
const ECHO_PORT: u16 = 9000;
const NBD_EXPORT: &str = "data";
const SUBSYSTEM: &str = "nqn.2026-11.nos:bench";
/// The partition that is not nbd-server's.
const DISK: &str = "/dev/nvme0n1p2";

const BOOT_PATIENCE: Duration = Duration::from_secs(120);
const COMMAND_PATIENCE: Duration = Duration::from_secs(60);

pub struct Linux {
    running: Running,
    pub link: Link,
    pub root: Root,
    /// What it says of itself: clock, CPUs, release.
    pub greeting: String,
}

impl Linux {
    pub fn boot(nic: Nic, image: &Path, generator: &Generator) -> Result<Self> {
        let root = root::build(nic, generator)?;
        let folder = Folder::new("bench-linux")?;
        let tcp = [NBD_SERVER_PORT, QEMU_NBD_PORT, NVMET_PORT].map(|port| (Protocol::Tcp, port));
        let ports: Vec<(Protocol, u16)> = tcp.into_iter().chain([(Protocol::Udp, ECHO_PORT)]).collect();
        let link = Link::new(1, &ports)?;
        let network = match link.machine_address() {
            Some(address) => format!("peer.ip={address}"),
            // What QEMU's user-mode network gives.
            None => "peer.ip=10.0.2.15/24 peer.gw=10.0.2.2".to_owned(),
        };
        // With several CPUs under emulation Linux takes its clock (the TSC) for broken and falls back to one that costs
        // an exit for each look at the time, unless it is told otherwise.
        let command_line = format!("console=ttyS0 quiet panic=-1 net.ifnames=0 tsc=reliable {network}");
        let boot =
            Boot::Direct { kernel: root.kernel.clone(), archive: Some(root.initramfs.clone()), command_line };
        let mut machine = Machine::new(&folder.name, folder.path.clone(), boot);
        super::same_for_both(&mut machine, nic, image, &link);
        let step = Step::begin("boot Linux");
        let mut running = Running::start(&machine, folder, Lifetime::OfThisThread)?;
        let deadline = Instant::now() + BOOT_PATIENCE;
        let greeting = running.console.expect("peer: ready", deadline)?;
        step.done(&greeting);
        Ok(Self { running, link, root, greeting })
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Where a service is reached, in the generator's notation.
    pub fn target(&self, service: Service) -> Option<String> {
        let reach = |protocol, port| self.link.reach(protocol, port);
        match service {
            Service::NbdServer => {
                Some(format!("nbd://{}/{NBD_EXPORT}", reach(Protocol::Tcp, NBD_SERVER_PORT)))
            }
            Service::QemuNbd => Some(format!("nbd://{}/{NBD_EXPORT}", reach(Protocol::Tcp, QEMU_NBD_PORT))),
            Service::Nvmet => Some(format!("nvme-tcp://{}/{SUBSYSTEM}", reach(Protocol::Tcp, NVMET_PORT))),
            Service::LinuxEcho => Some(format!("echo://{}", reach(Protocol::Udp, ECHO_PORT))),
            Service::Netblk
            | Service::Netblk2
            | Service::NodeEcho
            | Service::NodeDisk
            | Service::NodeBoth
            | Service::LinuxDisk => None,
        }
    }

    fn command(&mut self, command: &str) -> Result<Vec<String>> {
        self.running.console.command(command, Instant::now() + COMMAND_PATIENCE)
    }

    /// Writes out what nbd-server left in the page cache, so that it is not written out while others are measured.
    pub fn settle(&mut self) -> Result<()> {
        self.command("sync").map(drop)
    }

    /// fio on the machine's own disk.
    pub fn disk(&mut self, case: &Case, timing: Timing) -> Result<Figures> {
        let options = fio_options(case, timing).join(" ");
        let command = format!(
            "fio {options} --ioengine=libaio --direct=1 --filename={DISK} --output=/tmp/fio; tr -d ' \\n' </tmp/fio; echo"
        );
        let answer = self.command(&command)?;
        let json = answer.iter().find(|line| line.trim_start().starts_with('{'));
        fio_figures(json.map_or("", String::as_str), case)
            .with_context(|| format!("understanding what fio says: {}", answer.join("\n")))
    }

    /// nbd-server measured with fio's NBD engine (libnbd), on this host, out of the unpacked packages: whether the
    /// generator is fair to it.
    pub fn nbd_server_by_fio(&self, case: &Case, timing: Timing) -> Result<Figures> {
        let folders = root::library_folders(&self.root.unpacked);
        let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        let target = self.target(Service::NbdServer).context("nbd-server is Linux's")?;
        let mut command = Command::new(root::linker_path(&self.root.unpacked)?);
        command.arg("--library-path").arg(folders.join(":"));
        command.arg(root::program_path(&self.root.unpacked, "fio")?);
        command.args(fio_options(case, timing)).args(["--ioengine=nbd", &format!("--uri={target}")]);
        let text = run::output(&mut command)?;
        let start = text.find('{').unwrap_or(0);
        fio_figures(&text[start..], case).context("understanding what fio says")
    }
}

fn fio_options(case: &Case, timing: Timing) -> Vec<String> {
    let milliseconds = |seconds: f64| format!("{}ms", (seconds * 1000.0) as u64);
    vec![
        "--name=load".to_owned(),
        format!("--rw=rand{}", case.pattern.operation()),
        format!("--bs={}", case.pattern.bytes()),
        format!("--iodepth={}", case.window),
        format!("--size={}M", super::RANGE_MIB),
        "--time_based".to_owned(),
        format!("--runtime={}", milliseconds(timing.seconds)),
        format!("--ramp_time={}", milliseconds(timing.warm_up)),
        "--norandommap".to_owned(),
        "--randrepeat=0".to_owned(),
        "--lat_percentiles=1".to_owned(),
        "--clat_percentiles=0".to_owned(),
        "--output-format=json".to_owned(),
    ]
}

/// The figures in fio's JSON.
fn fio_figures(json: &str, case: &Case) -> Result<Figures> {
    let value: serde_json::Value = serde_json::from_str(json).context("no JSON")?;
    let side = &value["jobs"][0][case.pattern.operation()];
    let number = |value: &serde_json::Value, name: &str| {
        value[name].as_f64().with_context(|| format!("no {name} in fio's figures"))
    };
    let percentiles = &side["lat_ns"]["percentile"];
    Ok(Figures {
        per_second: number(side, "iops")?,
        p50_us: number(percentiles, "50.000000")? / 1000.0,
        p99_us: number(percentiles, "99.000000")? / 1000.0,
        asked_again: 0,
        turned_away: 0,
        cpu_seconds: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::super::cases::Pattern;
    use super::*;

    #[test]
    fn fios_figures_are_understood() {
        let json = r#"{"jobs":[{"read":{"iops":1234.5,"lat_ns":{"percentile":{"50.000000":600000,"99.000000":2700000}}}}]}"#;
        let case = Case { pattern: Pattern::Read1K, window: 1 };
        let figures = fio_figures(json, &case).unwrap();
        assert_eq!((figures.per_second, figures.p50_us, figures.p99_us), (1234.5, 600.0, 2700.0));
        let writes = Case { pattern: Pattern::Write1K, window: 1 };
        assert!(fio_figures(json, &writes).is_err());
        assert!(fio_figures("fio: nothing", &case).is_err());
    }

    #[test]
    fn init_and_this_file_agree() {
        let init = include_str!("init.sh");
        for port in [NBD_SERVER_PORT, QEMU_NBD_PORT, NVMET_PORT, ECHO_PORT] {
            assert!(init.contains(&port.to_string()), "{port}");
        }
        assert!(init.contains(SUBSYSTEM) && init.contains(DISK));
        assert!(init.contains(&format!("printf '{}'", announce::PROMPT)));
    }
}
