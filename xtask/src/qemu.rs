//! The machine that a node runs on, under QEMU.
//!
//! A q35 board with an NVMe disk, one network card, and a serial port that is a UNIX socket. Everything else that QEMU
//! would add by itself is left out. Guests of the node need AMD's SVM, which QEMU's own translator (TCG) emulates, with
//! nested paging; KVM is taken only where it can nest.

use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

pub const PROGRAM: &str = "qemu-system-x86_64";

/// Who executes the machine's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Accelerator {
    /// KVM if it can nest, else TCG.
    Auto,
    Tcg,
    Kvm,
}

/// The model of the network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Nic {
    Virtio,
    /// Intel 82576.
    Igb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// A port of the host's loopback that leads to a port of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostForward {
    pub protocol: Protocol,
    pub host_port: u16,
    pub node_port: u16,
}

/// What the network card's cable leads to.
#[derive(Debug, Clone)]
pub enum Uplink {
    /// QEMU's user-mode network: 10.0.2.0/24, DHCP, no root. The node is reachable through forwards only.
    User { forwards: Vec<HostForward> },
    /// An interface of the host that takes and gives Ethernet frames (a tap). Making one needs root.
    Tap { interface: String },
    /// Ethernet frames as datagrams: `local` is QEMU's socket, `remote` the other end's.
    Frames { local: PathBuf, remote: PathBuf },
    /// Another process is the card's device (vhost-user): it listens at `socket`, and has the machine's memory.
    Vhost { socket: PathBuf },
}

/// What QEMU's firmware finds to boot.
#[derive(Debug, Clone)]
pub enum Boot {
    /// The kernel's ELF by its PVH note, with the boot archive.
    Direct { kernel: PathBuf, archive: Option<PathBuf>, command_line: String },
    /// A GRUB image by the firmware.
    Iso { image: PathBuf, firmware: Firmware },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    SeaBios,
    Ovmf,
}

/// The model of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DiskModel {
    Nvme,
    Virtio,
}

/// A disk beside the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoreDisk {
    pub model: DiskModel,
    pub sector_bytes: u32,
    pub image: PathBuf,
}

impl std::str::FromStr for MoreDisk {
    type Err = String;

    /// `MODEL:SECTOR_BYTES:FILE`.
    fn from_str(text: &str) -> Result<MoreDisk, String> {
        let usage = || "expected MODEL:SECTOR_BYTES:FILE, such as virtio:4096:spare.img".to_owned();
        let mut parts = text.splitn(3, ':');
        let (Some(model), Some(sector), Some(file)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(usage());
        };
        let model = match model {
            "nvme" => DiskModel::Nvme,
            "virtio" => DiskModel::Virtio,
            _ => return Err(usage()),
        };
        let sector_bytes = parse_sector_bytes(sector)?;
        if file.is_empty() {
            return Err(usage());
        }
        Ok(MoreDisk { model, sector_bytes, image: file.into() })
    }
}

/// The sector sizes that the node's drivers have.
pub fn parse_sector_bytes(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("sectors have 512 or 4096 bytes".to_owned()),
    }
}

/// What a disk is doing when a fault comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskEvent {
    Read,
    Write,
    Flush,
}

/// A fault that the first disk has: such a command fails.
#[derive(Debug, Clone, Copy)]
pub struct DiskFault {
    pub event: DiskEvent,
    /// Commands that touch it; None: any.
    pub sector: Option<u64>,
    /// The first time only.
    pub once: bool,
}

impl DiskFault {
    /// The options of QEMU's blkdebug (docs/devel/testing/blkdebug.rst in its tree). A rule begins to hold with its event,
    /// which comes before the first such command.
    fn options(&self, number: usize) -> String {
        let (event, kind) = match self.event {
            DiskEvent::Read => ("read_aio", "read"),
            DiskEvent::Write => ("write_aio", "write"),
            DiskEvent::Flush => ("flush_to_disk", "flush"),
        };
        let rule = format!("file.inject-error.{number}");
        let mut options = format!(",{rule}.event={event},{rule}.iotype={kind},{rule}.errno=5");
        if let Some(sector) = self.sector {
            options.push_str(&format!(",{rule}.sector={sector}"));
        }
        if self.once {
            options.push_str(&format!(",{rule}.once=on"));
        }
        options
    }
}

/// A machine, as it is to be started.
#[derive(Debug, Clone)]
pub struct Machine {
    pub name: String,
    pub cpus: u32,
    pub memory_mib: u64,
    pub accelerator: Accelerator,
    /// Each instruction takes 2^n ns of the machine's own time, whatever the host does meanwhile: a clock that counts
    /// instructions. TCG only.
    pub instruction_ns_log2: Option<u32>,
    pub boot: Boot,
    /// None: a machine without a disk.
    pub disk: Option<PathBuf>,
    /// How the disk's file is to be read: `raw`, or a format of QEMU's with a cache of its own.
    pub disk_format: &'static str,
    pub disk_faults: Vec<DiskFault>,
    pub disk_read_only: bool,
    pub disk_model: DiskModel,
    pub sector_bytes: u32,
    /// Disks beside that one, empty or not, without faults.
    pub more_disks: Vec<MoreDisk>,
    pub nic: Nic,
    /// What a virtio card says that its link carries behind an Ethernet header; None: it does not say.
    pub mtu: Option<u16>,
    pub uplink: Uplink,
    /// The folder for sockets, logs and the pid file; relative, because a socket's path must be short.
    pub folder: PathBuf,
}

/// The files of a running machine, in its folder.
pub const CONSOLE_SOCKET: &str = "console.sock";
pub const CONSOLE_LOG: &str = "console.log";
pub const QMP_SOCKET: &str = "qmp.sock";
pub const PID_FILE: &str = "qemu.pid";
pub const QEMU_LOG: &str = "qemu.log";

impl Machine {
    /// A machine of the usual size that boots `boot`.
    pub fn new(name: &str, folder: PathBuf, boot: Boot) -> Self {
        Machine {
            name: name.to_owned(),
            cpus: 4,
            memory_mib: 1024,
            accelerator: Accelerator::Auto,
            instruction_ns_log2: None,
            boot,
            disk: None,
            disk_format: "raw",
            disk_faults: Vec::new(),
            disk_read_only: false,
            disk_model: DiskModel::Nvme,
            sector_bytes: 512,
            more_disks: Vec::new(),
            nic: Nic::Virtio,
            mtu: None,
            uplink: Uplink::User { forwards: Vec::new() },
            folder,
        }
    }

    /// Starts it. QEMU holds the machine still until somebody has connected to the console, so nothing that is
    /// printed is lost.
    pub fn start(&self, lifetime: Lifetime) -> Result<Child> {
        fs::create_dir_all(&self.folder).with_context(|| format!("creating {}", self.folder.display()))?;
        for file in [CONSOLE_SOCKET, CONSOLE_LOG, QMP_SOCKET, PID_FILE, QEMU_LOG] {
            crate::workspace::remove(&self.folder.join(file));
        }
        let log = File::create(self.folder.join(QEMU_LOG)).context("creating QEMU's log")?;
        let mut command = match lifetime {
            // The kernel ends QEMU when the thread that started it ends, whatever the reason.
            Lifetime::OfThisThread => {
                let mut command = Command::new("setpriv");
                command.args(["--pdeathsig", "KILL", PROGRAM]);
                command
            }
            // A session of its own: the terminal's Ctrl-C and hang-up are not for it.
            Lifetime::Own => {
                let mut command = Command::new("setsid");
                command.arg(PROGRAM);
                command
            }
        };
        command.args(self.arguments()?);
        command.stdin(Stdio::null()).stdout(log.try_clone().context("sharing QEMU's log")?).stderr(log);
        command.spawn().with_context(|| format!("starting {}", crate::run::show(&command)))
    }

    /// QEMU's arguments.
    pub fn arguments(&self) -> Result<Vec<String>> {
        let mut arguments = Arguments::default();
        arguments.flag("-no-user-config").flag("-nodefaults");
        arguments.option("-name", format!("nos-{}", self.name));
        if matches!(self.uplink, Uplink::Vhost { .. }) {
            let memory = format!("memory-backend-memfd,id=memory,size={}M,share=on", self.memory_mib);
            arguments.option("-object", memory).option("-machine", "q35,memory-backend=memory");
        } else {
            arguments.option("-machine", "q35");
        }
        match (self.instruction_ns_log2, self.accelerator) {
            (Some(shift), _) => arguments
                .option("-accel", "tcg,thread=single")
                .option("-icount", format!("shift={shift}"))
                // The APIC's timer as model-specific registers (x2APIC) reads the clock where QEMU 10 does not expect
                // it to be read while it counts ("Bad icount read"); as memory it works.
                .option("-cpu", "max,+svm,-x2apic"),
            (None, Accelerator::Kvm) => arguments.option("-accel", "kvm").option("-cpu", "host"),
            (None, Accelerator::Auto) if kvm_is_usable() => {
                arguments.option("-accel", "kvm").option("-cpu", "host")
            }
            (None, Accelerator::Auto | Accelerator::Tcg) => {
                arguments.option("-accel", "tcg,thread=multi").option("-cpu", "max,+svm")
            }
        };
        arguments.option("-smp", self.cpus.to_string()).option("-m", format!("{}M", self.memory_mib));
        arguments.option("-display", "none");
        let file = |name: &str| escape(&self.folder.join(name));
        arguments.option(
            "-chardev",
            format!(
                "socket,id=console,path={},server=on,wait=on,logfile={}",
                file(CONSOLE_SOCKET)?,
                file(CONSOLE_LOG)?
            ),
        );
        arguments.option("-serial", "chardev:console");
        arguments.option("-qmp", format!("unix:{},server=on,wait=off", file(QMP_SOCKET)?));
        // Absolute, so that `down` can tell our QEMU by it wherever it was started.
        let pid_file =
            std::path::absolute(self.folder.join(PID_FILE)).context("finding the node's folder")?;
        arguments.option("-pidfile", pid_file.display().to_string());
        match &self.boot {
            Boot::Direct { kernel, archive, command_line } => {
                arguments.option("-kernel", kernel.display().to_string());
                if let Some(archive) = archive {
                    arguments.option("-initrd", archive.display().to_string());
                }
                if !command_line.is_empty() {
                    arguments.option("-append", command_line.clone());
                }
            }
            Boot::Iso { image, firmware } => {
                if *firmware == Firmware::Ovmf {
                    arguments.option("-bios", ovmf()?.display().to_string());
                }
                arguments.option(
                    "-drive",
                    format!("if=none,id=iso,media=cdrom,readonly=on,format=raw,file={}", escape(image)?),
                );
                arguments.option("-device", "ide-cd,drive=iso,bootindex=0");
            }
        }
        if let Some(disk) = &self.disk {
            self.disk_arguments(disk, &mut arguments)?;
        }
        self.more_disk_arguments(&mut arguments)?;
        self.network_arguments(&mut arguments)?;
        Ok(arguments.words)
    }

    fn disk_arguments(&self, disk: &Path, arguments: &mut Arguments) -> Result<()> {
        let read_only = if self.disk_read_only { "on" } else { "off" };
        // blkdebug passes everything through but what it is told to fail; a running machine can be given breakpoints.
        let format = self.disk_format;
        let mut drive = format!(
            "if=none,id=disk0,format={format},readonly={read_only},discard=unmap,file.driver=blkdebug"
        );
        drive.push_str(&format!(",file.image.driver=file,file.image.filename={}", escape(disk)?));
        for (number, fault) in self.disk_faults.iter().enumerate() {
            drive.push_str(&fault.options(number));
        }
        // The faults' error is for the guest, not for a stop of the machine.
        arguments.option("-drive", drive);
        arguments.option("-device", self.disk_device(0, self.disk_model, self.sector_bytes));
        Ok(())
    }

    fn more_disk_arguments(&self, arguments: &mut Arguments) -> Result<()> {
        for (number, disk) in (1..).zip(&self.more_disks) {
            let file = escape(&disk.image)?;
            arguments
                .option("-drive", format!("if=none,id=disk{number},format=raw,discard=unmap,file={file}"))
                .option("-device", self.disk_device(number, disk.model, disk.sector_bytes));
        }
        Ok(())
    }

    fn disk_device(&self, number: usize, model: DiskModel, sector: u32) -> String {
        let model = match model {
            DiskModel::Nvme => format!("nvme,id=nvme{number}"),
            // The firmware need not look at it: nothing is booted from there.
            DiskModel::Virtio => format!("virtio-blk-pci,id=virtio{number}"),
        };
        let serial = match number {
            0 => format!("nos-{}", self.name),
            _ => format!("nos-{}-{number}", self.name),
        };
        // The longest that a virtio device has room for.
        let serial: String = serial.chars().take(20).collect();
        format!(
            "{model},serial={serial},drive=disk{number},logical_block_size={sector},physical_block_size={sector}"
        )
    }

    fn network_arguments(&self, arguments: &mut Arguments) -> Result<()> {
        let mut netdev = match &self.uplink {
            Uplink::User { .. } => "user,id=uplink".to_owned(),
            Uplink::Tap { interface } => {
                format!("tap,id=uplink,ifname={interface},script=no,downscript=no")
            }
            Uplink::Frames { local, remote } => format!(
                "dgram,id=uplink,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                escape(local)?,
                escape(remote)?
            ),
            Uplink::Vhost { socket } => {
                arguments.option("-chardev", format!("socket,id=vhost,path={}", escape(socket)?));
                "vhost-user,id=uplink,chardev=vhost".to_owned()
            }
        };
        if let Uplink::User { forwards } = &self.uplink {
            for forward in forwards {
                let protocol = match forward.protocol {
                    Protocol::Tcp => "tcp",
                    Protocol::Udp => "udp",
                };
                netdev.push_str(&format!(
                    ",hostfwd={protocol}:127.0.0.1:{}-:{}",
                    forward.host_port, forward.node_port
                ));
            }
        }
        arguments.option("-netdev", netdev);
        // No boot from the network: an empty romfile keeps the card's firmware out.
        let mut device = match self.nic {
            Nic::Virtio => "virtio-net-pci,netdev=uplink,romfile=".to_owned(),
            Nic::Igb => "igb,netdev=uplink,romfile=".to_owned(),
        };
        match (self.mtu, self.nic) {
            (Some(mtu), Nic::Virtio) => device.push_str(&format!(",host_mtu={mtu}")),
            (Some(_), Nic::Igb) => bail!("an igb card does not tell the node an MTU"),
            (None, _) => {}
        }
        arguments.option("-device", device);
        Ok(())
    }
}

/// When a QEMU has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// With the thread that starts it.
    OfThisThread,
    /// When it is told to.
    Own,
}

#[derive(Default)]
struct Arguments {
    words: Vec<String>,
}

impl Arguments {
    fn flag(&mut self, flag: &str) -> &mut Self {
        self.words.push(flag.to_owned());
        self
    }

    fn option(&mut self, option: &str, value: impl Into<String>) -> &mut Self {
        self.words.extend([option.to_owned(), value.into()]);
        self
    }
}

/// A path inside one of QEMU's comma-separated lists: a comma is doubled.
fn escape(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.replace(',', ",,"))
}

fn ovmf() -> Result<PathBuf> {
    let places = ["/usr/share/ovmf/OVMF.fd", "/usr/share/OVMF/OVMF.fd", "/usr/share/edk2/ovmf/OVMF.fd"];
    match places.iter().map(Path::new).find(|path| path.is_file()) {
        Some(path) => Ok(path.to_path_buf()),
        None => bail!("no OVMF firmware found; looked in {}", places.join(", ")),
    }
}

/// KVM is of use only if it lets guests have guests, and if this user may open it. /dev/kvm alone says nothing of the
/// first: inside a virtual machine it may be there and interpret every kernel instruction.
pub fn kvm_is_usable() -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let module = if flags.split(' ').any(|flag| flag == "svm") {
        "kvm_amd"
    } else if flags.split(' ').any(|flag| flag == "vmx") {
        "kvm_intel"
    } else {
        return false;
    };
    let nested = fs::read_to_string(format!("/sys/module/{module}/parameters/nested")).unwrap_or_default();
    matches!(nested.trim(), "1" | "Y") && File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let boot =
            Boot::Direct { kernel: "k".into(), archive: Some("a".into()), command_line: String::new() };
        Machine::new("x", "target/nos/x".into(), boot)
    }

    #[test]
    fn a_virtio_card_tells_its_mtu() {
        let mut machine = machine();
        assert!(!machine.arguments().unwrap().join(" ").contains("host_mtu"));
        machine.mtu = Some(9000);
        assert!(
            machine
                .arguments()
                .unwrap()
                .join(" ")
                .contains("virtio-net-pci,netdev=uplink,romfile=,host_mtu=9000")
        );
        machine.nic = Nic::Igb;
        assert!(machine.arguments().is_err());
    }

    #[test]
    fn forwards_and_faults_reach_the_command_line() {
        let mut machine = machine();
        machine.disk = Some("a,b".into());
        machine.disk_faults = vec![DiskFault { event: DiskEvent::Read, sector: Some(7), once: true }];
        let forward = HostForward { protocol: Protocol::Udp, host_port: 1, node_port: 2 };
        machine.uplink = Uplink::User { forwards: vec![forward] };
        let words = machine.arguments().unwrap().join(" ");
        assert!(words.contains("file.image.filename=a,,b"), "{words}");
        assert!(words.contains("file.inject-error.0.event=read_aio"), "{words}");
        assert!(words.contains("file.inject-error.0.sector=7,file.inject-error.0.once=on"), "{words}");
        assert!(words.contains("user,id=uplink,hostfwd=udp:127.0.0.1:1-:2"), "{words}");
    }

    #[test]
    fn disks_of_any_model_stand_side_by_side() {
        let mut machine = machine();
        machine.disk = Some("first".into());
        machine.disk_model = DiskModel::Virtio;
        machine.more_disks = vec!["nvme:4096:second".parse().unwrap()];
        let words = machine.arguments().unwrap().join(" ");
        assert!(
            words.contains("virtio-blk-pci,id=virtio0,serial=nos-x,drive=disk0,logical_block_size=512"),
            "{words}"
        );
        assert!(
            words.contains("nvme,id=nvme1,serial=nos-x-1,drive=disk1,logical_block_size=4096"),
            "{words}"
        );
    }

    #[test]
    fn a_disk_is_described_or_refused() {
        let disk: MoreDisk = "virtio:512:a:b.img".parse().unwrap();
        assert_eq!(
            (disk.model, disk.sector_bytes, disk.image.to_str()),
            (DiskModel::Virtio, 512, Some("a:b.img"))
        );
        for wrong in ["", "a.img", "virtio:a.img", "virtio:1024:a.img", "floppy:512:a.img", "nvme:512:"] {
            assert!(wrong.parse::<MoreDisk>().is_err(), "{wrong}");
        }
    }
}
