//! The description of a node, before it runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use xtask::archive::{self, Source};
use xtask::link::Link;
use xtask::node::{Folder, Running, any_forward};
use xtask::qemu::{
    Boot, DiskEvent, DiskFault, DiskModel, Firmware, Lifetime, Machine, MoreDisk, Nic, Protocol, Uplink,
};
use xtask::{disk, guest, image, kernel, workspace};

use crate::node::Node;
use crate::vhost;

/// Who loads the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    Pvh,
    GrubByBios,
    GrubByUefi,
}

/// A node to be booted. Without a word it has two CPUs, 512 MiB, an empty disk, the user-mode network, and an empty
/// configuration.
#[derive(Debug, Clone)]
pub struct Setup {
    name: String,
    configuration: Vec<u8>,
    /// Files of the boot archive beside those that `nos.toml` names and `xtask` makes.
    files: Vec<(String, Vec<u8>)>,
    without_files: bool,
    /// Modules of the boot archive beside the node's own, or instead of them.
    modules: Vec<(String, Vec<u8>)>,
    cpus: u32,
    memory_mib: u64,
    loader: Loader,
    command_line: String,
    disk_bytes: Option<u64>,
    disk_file: Option<(PathBuf, &'static str)>,
    disk_read_only: bool,
    disk_model: DiskModel,
    sector_bytes: u32,
    more_disks: Vec<(DiskModel, u32, u64)>,
    faults: Vec<DiskFault>,
    nic: Nic,
    frames: bool,
    vhost: Option<vhost::Offer>,
    /// What takes the place of the forwards.
    link: Option<Uplink>,
    mtu: Option<u16>,
    instruction_ns_log2: Option<u32>,
}

impl Setup {
    /// `name` is the story's: its files are under it, in `target/stories`.
    pub fn of(name: &str) -> Setup {
        Setup {
            name: name.to_owned(),
            configuration: Vec::new(),
            files: Vec::new(),
            without_files: false,
            modules: Vec::new(),
            cpus: 2,
            memory_mib: 512,
            loader: Loader::Pvh,
            command_line: String::new(),
            disk_bytes: Some(64 << 20),
            disk_file: None,
            disk_read_only: false,
            disk_model: DiskModel::Nvme,
            sector_bytes: 512,
            more_disks: Vec::new(),
            faults: Vec::new(),
            nic: Nic::Virtio,
            frames: false,
            vhost: None,
            link: None,
            mtu: None,
            instruction_ns_log2: None,
        }
    }

    pub fn cpus(mut self, cpus: u32) -> Setup {
        self.cpus = cpus;
        self
    }

    pub fn memory_mib(mut self, memory_mib: u64) -> Setup {
        self.memory_mib = memory_mib;
        self
    }

    /// A cable to this host: its own address there is the configuration's to say.
    pub fn linked(mut self, link: &Link) -> Setup {
        self.link = Some(link.uplink());
        self
    }

    /// The text of `nos.toml`.
    pub fn configured(mut self, text: impl Into<Vec<u8>>) -> Setup {
        self.configuration = text.into();
        self
    }

    /// The repository's own `nos.toml`: guests alpha and beta, the disk, the forward.
    pub fn configured_as_shipped(self) -> Setup {
        let text =
            workspace::read_bytes(&workspace::root().join("nos.toml")).expect("the default configuration");
        self.configured(text)
    }

    /// A file for the boot archive, as a guest's kernel.
    pub fn with_file(mut self, name: &str, content: Vec<u8>) -> Setup {
        self.files.push((name.to_owned(), content));
        self
    }

    /// A module for the boot archive, as `modules/NAME.ko`.
    pub fn with_module(mut self, name: &str, content: Vec<u8>) -> Setup {
        self.modules.push((name.to_owned(), content));
        self
    }

    /// Leaves out of the boot archive every file that `nos.toml` names.
    pub fn without_guest_files(mut self) -> Setup {
        self.without_files = true;
        self
    }

    pub fn loaded_by(mut self, loader: Loader) -> Setup {
        self.loader = loader;
        self
    }

    /// Words for the kernel, where QEMU loads it.
    pub fn told(mut self, command_line: &str) -> Setup {
        self.command_line = command_line.to_owned();
        self
    }

    pub fn without_disk(mut self) -> Setup {
        self.disk_bytes = None;
        self
    }

    /// A disk that exists already, as a file of this format, instead of an empty one.
    pub fn disk_file(mut self, path: &Path, format: &'static str) -> Setup {
        self.disk_file = Some((path.to_owned(), format));
        self
    }

    pub fn disk_bytes(mut self, bytes: u64) -> Setup {
        self.disk_bytes = Some(bytes);
        self
    }

    pub fn sector_bytes(mut self, bytes: u32) -> Setup {
        self.sector_bytes = bytes;
        self
    }

    /// The machine does not let the node write to the disk.
    pub fn disk_read_only(mut self) -> Setup {
        self.disk_read_only = true;
        self
    }

    /// What the disk is; an NVMe namespace without a word.
    pub fn disk_model(mut self, model: DiskModel) -> Setup {
        self.disk_model = model;
        self
    }

    /// An empty disk beside the others.
    pub fn one_more_disk(mut self, model: DiskModel, sector_bytes: u32, bytes: u64) -> Setup {
        self.more_disks.push((model, sector_bytes, bytes));
        self
    }

    /// The disk fails every read that touches this sector of 512 bytes.
    pub fn failing_to_read(self, sector: u64) -> Setup {
        self.with_fault(DiskFault { event: DiskEvent::Read, sector: Some(sector), once: false })
    }

    /// The disk fails every write that touches this sector of 512 bytes.
    pub fn failing_to_write(self, sector: u64) -> Setup {
        self.with_fault(DiskFault { event: DiskEvent::Write, sector: Some(sector), once: false })
    }

    /// The disk has this fault too.
    pub fn with_fault(mut self, fault: DiskFault) -> Setup {
        self.faults.push(fault);
        self
    }

    /// The network card's model; a virtio one without a word.
    pub fn nic(mut self, nic: Nic) -> Setup {
        self.nic = nic;
        self
    }

    /// The network card's cable ends in this story, as raw Ethernet frames.
    pub fn wired_to_the_story(mut self) -> Setup {
        self.frames = true;
        self
    }

    /// The network card is this story's too ([`Node::card`]), and its cable ends here.
    pub fn with_the_storys_card(mut self, offer: vhost::Offer) -> Setup {
        self.vhost = Some(offer);
        self
    }

    /// The network card says that its link carries so many bytes behind an Ethernet header.
    pub fn mtu(mut self, bytes: u16) -> Setup {
        self.mtu = Some(bytes);
        self
    }

    /// The machine's clock counts instructions: each takes 2^n ns, and what `cpu` calls awake is their number.
    pub fn counting_instructions(mut self, instruction_ns_log2: u32) -> Setup {
        self.instruction_ns_log2 = Some(instruction_ns_log2);
        self
    }

    /// Boots it. The node may not be ready when this returns; it has been started.
    pub fn boot(self) -> Node {
        let name = self.name.clone();
        self.try_boot().unwrap_or_else(|error| panic!("{name}: the node could not be started: {error:#}"))
    }

    fn try_boot(self) -> Result<Node> {
        workspace::enter_root()?;
        let folder = workspace::target().join("stories").join(&self.name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let mut kernel = kernel::build()?;
        for (name, content) in &self.modules {
            let file = folder.join(format!("{name}.ko"));
            workspace::write_if_changed(&file, content)?;
            kernel.modules.retain(|(other, _)| other != name);
            kernel.modules.push((name.clone(), file));
        }
        for (name, content) in &self.files {
            workspace::write_if_changed(&folder.join(name), content)?;
        }
        let source = Source::from_text(self.configuration.clone(), folder.clone());
        let made = !self.without_files && source.needs_demonstration_files();
        let demonstration = if made { Some(guest::build()?) } else { None };
        let archive = folder.join("boot.tar");
        archive::write(&archive, &kernel, &source, demonstration.as_ref())?;

        let boot = match self.loader {
            Loader::Pvh => Boot::Direct {
                kernel: kernel.elf.clone(),
                archive: Some(archive),
                command_line: self.command_line.clone(),
            },
            Loader::GrubByBios | Loader::GrubByUefi => {
                let iso = folder.join("nos.iso");
                image::build(&kernel.elf, &archive, &iso)?;
                let by_bios = self.loader == Loader::GrubByBios;
                Boot::Iso { image: iso, firmware: if by_bios { Firmware::SeaBios } else { Firmware::Ovmf } }
            }
        };
        let mut machine = Machine::new(&self.name, folder.clone(), boot);
        machine.cpus = self.cpus;
        machine.instruction_ns_log2 = self.instruction_ns_log2;
        machine.memory_mib = self.memory_mib;
        machine.nic = self.nic;
        machine.mtu = self.mtu;
        machine.disk_faults = self.faults;
        machine.disk_read_only = self.disk_read_only;
        machine.disk_model = self.disk_model;
        machine.sector_bytes = self.sector_bytes;
        for (number, (model, sector_bytes, bytes)) in self.more_disks.into_iter().enumerate() {
            let image = folder.join(format!("disk{}.img", number + 1));
            disk::ensure_image(&image, bytes)?;
            machine.more_disks.push(MoreDisk { model, sector_bytes, image });
        }
        if let Some((path, format)) = self.disk_file {
            machine.disk = Some(path);
            machine.disk_format = format;
        } else if let Some(bytes) = self.disk_bytes {
            let path = folder.join("disk.img");
            disk::ensure_image(&path, bytes)?;
            machine.disk = Some(path);
        }
        let (local, remote) = (folder.join("card.sock"), folder.join("story.sock"));
        let mut card = None;
        let wire = if let Some(offer) = self.vhost {
            let socket = folder.join("vhost.sock");
            card = Some(vhost::Card::listen(&socket, offer, &local, &remote)?);
            machine.uplink = Uplink::Vhost { socket };
            Some(crate::frames::Wire::open(&remote, local)?)
        } else if self.frames {
            machine.uplink = Uplink::Frames { local: local.clone(), remote: remote.clone() };
            Some(crate::frames::Wire::open(&remote, local)?)
        } else if let Some(uplink) = self.link {
            machine.uplink = uplink;
            None
        } else {
            let mut forwards = Vec::new();
            for service in &source.config.netblk {
                forwards.push(any_forward(Protocol::Udp, service.port, &forwards)?);
            }
            for forward in &source.config.forwards {
                forwards.push(any_forward(Protocol::Tcp, forward.port, &forwards)?);
            }
            machine.uplink = Uplink::User { forwards };
            None
        };
        let disk = machine.disk.clone().unwrap_or_default();
        let running =
            Running::start(&machine, Folder { name: self.name, path: folder }, Lifetime::OfThisThread)?;
        Ok(Node::new(running, machine.uplink, wire, card, disk))
    }
}
