//! Nodes that run: their folder, their process, what is known of them on the host.

use std::fs;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::cleanup::Cleanup;
use crate::console::Console;
use crate::qemu::{self, HostForward, Lifetime, Machine, Protocol};
use crate::workspace;

/// The node that has no name of its own.
pub const DEFAULT_NAME: &str = "nos";

/// The folder of one node, under `target/nos`.
#[derive(Debug, Clone)]
pub struct Folder {
    pub name: String,
    pub path: PathBuf,
}

impl Folder {
    pub fn new(name: &str) -> Result<Folder> {
        ensure!(
            !name.is_empty()
                && name.len() <= 20
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'),
            "{name:?} is no name for a node: small letters, digits and hyphens, at most 20"
        );
        let base = workspace::target().join("nos");
        let path = if name == DEFAULT_NAME { base } else { base.join(name) };
        Ok(Folder { name: name.to_owned(), path })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn endpoints_file(&self) -> PathBuf {
        self.file("endpoints.json")
    }

    /// Held by the command that is bringing the node up, or that is attached to it.
    pub fn lock(&self) -> Result<fs::File> {
        workspace::try_lock(&self.file("lock"))?
            .with_context(|| format!("another `cargo xtask up` has the node {} in hand", self.name))
    }

    /// The node's QEMU, if it runs. A pid file alone proves nothing: the number may be another process's by now, so
    /// the process must have been started with this very pid file.
    pub fn running(&self) -> Result<Option<Process>> {
        let pid_file = self.file(qemu::PID_FILE);
        let Ok(text) = fs::read_to_string(&pid_file) else { return Ok(None) };
        let number: i32 = text.trim().parse().with_context(|| format!("reading {}", pid_file.display()))?;
        let Some(pid) = Pid::from_raw(number) else { return Ok(None) };
        // Opened before the check: from here on the handle means one process, whatever becomes of the number.
        let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return Ok(None) };
        let command = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let mark = std::path::absolute(&pid_file).context("finding the node's folder")?;
        let mark = mark.to_string_lossy();
        let ours = command.split(|byte| *byte == 0).any(|word| word == mark.as_bytes());
        Ok(ours.then_some(Process { pid: number, handle }))
    }

    /// Removes what only means something while the node runs. The logs and the disk stay.
    pub fn clear(&self) {
        for file in [qemu::CONSOLE_SOCKET, qemu::QMP_SOCKET, qemu::PID_FILE, "boot.tar"] {
            workspace::remove(&self.file(file));
        }
        workspace::remove(&self.endpoints_file());
    }
}

/// A process that is not this program's child.
#[derive(Debug)]
pub struct Process {
    pub pid: i32,
    handle: OwnedFd,
}

impl Process {
    /// Asks it to end, and makes it end if it does not.
    pub fn end(&self) -> Result<()> {
        for (signal, patience) in
            [(Signal::TERM, Duration::from_secs(5)), (Signal::KILL, Duration::from_secs(5))]
        {
            if rustix::process::pidfd_send_signal(&self.handle, signal).is_err() {
                // It has ended in the meantime.
                return Ok(());
            }
            let mut wait = [PollFd::new(&self.handle, PollFlags::IN)];
            let timeout = patience.try_into().context("a time-out")?;
            if rustix::event::poll(&mut wait, Some(&timeout)).context("waiting for QEMU to end")? > 0 {
                return Ok(());
            }
        }
        bail!("process {} does not end", self.pid)
    }
}

/// A node whose QEMU this program has started.
pub struct Running {
    pub folder: Folder,
    pub console: Console,
    qemu: Arc<Mutex<Child>>,
    cleanup: Cleanup,
}

impl Running {
    /// Starts the machine and connects to its console; from then on it runs.
    pub fn start(machine: &Machine, folder: Folder, lifetime: Lifetime) -> Result<Running> {
        let qemu = Arc::new(Mutex::new(machine.start(lifetime)?));
        let cleanup = Cleanup::new({
            let (qemu, folder) = (Arc::clone(&qemu), folder.clone());
            move || {
                let mut qemu = child(&qemu);
                // Both fail only if it has ended already.
                let _ = qemu.kill();
                let _ = qemu.wait();
                folder.clear();
            }
        });
        let socket = folder.file(qemu::CONSOLE_SOCKET);
        let console = Console::connect(&socket, || Ok(child(&qemu).try_wait()?), Duration::from_secs(20))
            .with_context(|| format!("QEMU says: {}", qemu_log(&folder)))?;
        Ok(Running { folder, console, qemu, cleanup })
    }

    pub fn pid(&self) -> u32 {
        child(&self.qemu).id()
    }

    /// Whether QEMU has ended.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        Ok(child(&self.qemu).try_wait()?)
    }

    /// Lets it run on when this program ends.
    pub fn leave(self) {
        self.cleanup.defuse();
    }

    /// Gives the console away; the node ends when the rest is dropped.
    pub fn into_console(self) -> (Console, impl Drop) {
        (self.console, self.cleanup)
    }
}

fn child(qemu: &Mutex<Child>) -> MutexGuard<'_, Child> {
    qemu.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What QEMU itself had to say: nothing, as long as all is well.
pub fn qemu_log(folder: &Folder) -> String {
    fs::read_to_string(folder.file(qemu::QEMU_LOG)).unwrap_or_default().trim().to_owned()
}

/// `endpoints.json`: what is reachable and how, for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    pub name: String,
    pub pid: u32,
    pub log: String,
    pub console: String,
    pub qmp: String,
    pub netblk: Vec<NetblkEndpoint>,
    pub forwards: Vec<ForwardEndpoint>,
    pub boot: BootTimes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetblkEndpoint {
    pub disk: String,
    pub address: String,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardEndpoint {
    pub guest: String,
    pub guest_port: u16,
    pub address: String,
    pub port: u16,
}

/// How long things took from the start of the emulator, as this program saw it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BootTimes {
    pub shell_ms: u64,
    pub guests_ms: std::collections::BTreeMap<String, u64>,
}

pub const LOOPBACK: &str = "127.0.0.1";

/// A forward from a free port of the host: the node's own number if that is free, which is what a person expects, else
/// any.
pub fn free_forward(protocol: Protocol, node_port: u16, taken: &[HostForward]) -> Result<HostForward> {
    // Below 1024 is the system's.
    if node_port >= 1024 && is_usable(protocol, node_port, taken) {
        return Ok(HostForward { protocol, host_port: node_port, node_port });
    }
    any_forward(protocol, node_port, taken)
}

/// A forward from a port that the host gives out. Two programs that look for a port at one moment are not given the
/// same, as they are where both want the node's own.
pub fn any_forward(protocol: Protocol, node_port: u16, taken: &[HostForward]) -> Result<HostForward> {
    let port = (0..16).find_map(|_| bind(protocol, 0).ok().filter(|port| is_usable(protocol, *port, taken)));
    Ok(HostForward { protocol, host_port: port.context("no free port on the loopback")?, node_port })
}

fn is_usable(protocol: Protocol, port: u16, taken: &[HostForward]) -> bool {
    !taken.iter().any(|other| other.protocol == protocol && other.host_port == port)
        && bind(protocol, port).is_ok()
}

/// Takes a port for a moment, to see whether it can be had.
fn bind(protocol: Protocol, port: u16) -> io::Result<u16> {
    match protocol {
        Protocol::Tcp => TcpListener::bind((LOOPBACK, port))?.local_addr(),
        Protocol::Udp => UdpSocket::bind((LOOPBACK, port))?.local_addr(),
    }
    .map(|address| address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_the_documented_shape() {
        let endpoints = Endpoints {
            name: "nos".into(),
            pid: 4711,
            log: "target/nos/console.log".into(),
            console: "unix:target/nos/console.sock".into(),
            qmp: "unix:target/nos/qmp.sock".into(),
            netblk: vec![NetblkEndpoint { disk: "nvme0n1".into(), address: LOOPBACK.into(), port: 10809 }],
            forwards: vec![ForwardEndpoint {
                guest: "alpha".into(),
                guest_port: 80,
                address: LOOPBACK.into(),
                port: 8080,
            }],
            boot: BootTimes::default(),
        };
        let value = serde_json::to_value(&endpoints).unwrap();
        assert_eq!(value["pid"], 4711);
        assert_eq!(value["log"], "target/nos/console.log");
        assert_eq!(value["console"], "unix:target/nos/console.sock");
        assert_eq!(
            value["netblk"],
            serde_json::json!([{ "disk": "nvme0n1", "address": "127.0.0.1", "port": 10809 }])
        );
        assert_eq!(
            value["forwards"],
            serde_json::json!([{ "guest": "alpha", "guest_port": 80, "address": "127.0.0.1", "port": 8080 }])
        );
        assert_eq!(serde_json::from_value::<Endpoints>(value).unwrap(), endpoints);
    }

    #[test]
    fn a_taken_port_is_not_given_again() {
        let holder = UdpSocket::bind((LOOPBACK, 0)).unwrap();
        let taken = holder.local_addr().unwrap().port();
        let forward = free_forward(Protocol::Udp, taken, &[]).unwrap();
        assert_ne!(forward.host_port, taken);
        let second = free_forward(Protocol::Udp, forward.host_port, &[forward]).unwrap();
        assert_ne!(second.host_port, forward.host_port);
    }

    #[test]
    fn names_stay_inside_target() {
        assert!(Folder::new("lab-2").is_ok());
        for name in ["", "../x", "a/b", "A", "x y", "123456789012345678901"] {
            assert!(Folder::new(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_stranger_with_the_nodes_number_is_not_the_node() {
        let base = std::env::temp_dir().join(format!("nos-node-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let folder = Folder { name: "x".into(), path: base.clone() };
        assert!(folder.running().unwrap().is_none());
        fs::write(folder.file(qemu::PID_FILE), format!("{}\n", std::process::id())).unwrap();
        assert!(folder.running().unwrap().is_none());
        fs::remove_dir_all(base).unwrap();
    }
}
