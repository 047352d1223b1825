//! What this node allows at best, as a module of the node: the floor that netblk is measured against.
//!
//! A request for a sector is a datagram in, a transfer of the disk, a datagram out. [`echo`] is the first and the last
//! without the transfer: a handler in the receive path that answers datagrams of the same lengths. [`disk`] is the
//! transfer alone: a task like netblk's worker that keeps the disk busy. A service that does both for each request
//! cannot do more of them than the slower of the two.
//!
//! It is for a bench's own network: the echo multiplies what it is sent, and the disk's load may write.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod disk;
mod echo;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use kcore::module::{Begun, Module};
use kcore::say;
use kcore::shell::{Command, Done};
use kcore::sync::SpinLock;

use disk::Load;
use echo::Echo;

const COMMANDS: &[Command] = &[FLOOR];

const FLOOR: Command = Command {
    name: "floor",
    usage: "echo PORT|off | disk DISK read|write BYTES WINDOW MS [WARM_UP_MS]",
    help: "measures what this node allows at best; a write destroys what the disk holds",
};

kcore::module!(begin);

fn begin(_configuration: &'static [u8]) -> Begun {
    Ok(Box::new(Floor { echo: SpinLock::new(None) }))
}

/// The module.
struct Floor {
    echo: SpinLock<Option<Echo>>,
}

impl Floor {
    /// Puts another echo in the place of the one there is. That one's port is unbound without the lock: it may take a
    /// moment.
    fn replace_echo(&self, echo: Option<Echo>) {
        let before = core::mem::replace(&mut *self.echo.lock(), echo);
        drop(before);
    }
}

impl Module for Floor {
    fn commands(&self) -> &'static [Command] {
        COMMANDS
    }

    fn run(&self, _command: &str, arguments: &[&str]) -> Done {
        match arguments {
            ["echo", "off"] => {
                self.replace_echo(None);
                say!("floor: no echo");
            }
            ["echo", port] => {
                let port = port.parse().map_err(|_| FLOOR.wrong_use())?;
                self.replace_echo(None);
                let stack = stack::all().into_iter().next().ok_or("there is no network card")?;
                self.replace_echo(Some(Echo::start(&stack, port)?));
                say!("floor: echo on port {port}");
            }
            ["disk", name, options @ ..] => {
                let load = Load::parse(options).ok_or_else(|| FLOOR.wrong_use())?;
                say!("{}", load.run(name)?);
            }
            _ => return Err(FLOOR.wrong_use()),
        }
        Ok(())
    }

    fn complete(&self, words: &[&str], candidates: &mut Vec<String>) {
        match words {
            ["floor"] => candidates.extend(["echo", "disk"].map(String::from)),
            ["floor", "disk"] => {
                candidates.extend(kcore::block::disks().iter().map(|disk| String::from(disk.name())));
            }
            ["floor", "disk", _] => candidates.extend(["read", "write"].map(String::from)),
            _ => {}
        }
    }

    fn busy(&self) -> Option<String> {
        let echoes = self.echo.lock().is_some();
        echoes.then(|| String::from("it echoes; `floor echo off` ends that"))
    }

    fn stop_everything(&self) {
        self.replace_echo(None);
    }
}
