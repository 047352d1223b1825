//! Commands about modules.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use kcore::module;

use super::{Command, Done, Trouble, say};
use crate::node::Node;

pub(super) const COMMANDS: &[Command] = &[LSMOD];

const LSMOD: Command = Command { name: "lsmod", usage: "", help: "every module that is loaded", run: lsmod };

fn lsmod(_node: &Node, arguments: &[&str]) -> Done {
    LSMOD.alone(arguments)?;
    for loaded in module::list() {
        say!("{}", loaded.name());
    }
    Ok(())
}

/// The modules that could be loaded.
pub(super) fn loadable() -> Vec<String> {
    Vec::new()
}

/// For a word that no command has.
pub(super) fn unknown(name: &str) -> Trouble {
    Trouble::from(format!("no command is called {name}; `help` lists them"))
}
