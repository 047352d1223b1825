//! Commands about modules.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use kcore::module;

use super::{Command, Done, Size, Trouble, say};
use crate::node::Node;

pub(super) const COMMANDS: &[Command] = &[LSMOD, INSMOD, RMMOD];

const LSMOD: Command = Command {
    name: "lsmod",
    usage: "",
    help: "the modules that are loaded, and those that could be",
    run: lsmod,
};
const INSMOD: Command = Command {
    name: "insmod",
    usage: "NAME",
    help: "loads a module from the boot archive; it does what nos.toml asks of it",
    run: insmod,
};
const RMMOD: Command = Command {
    name: "rmmod",
    usage: "NAME",
    help: "unloads a module of which nothing runs, and shows that it left nothing",
    run: rmmod,
};

fn lsmod(_node: &Node, arguments: &[&str]) -> Done {
    LSMOD.alone(arguments)?;
    for loaded in module::list() {
        let state = loaded.module().busy().map_or(String::from("idle"), |why| format!("in use: {why}"));
        say!(
            "{:<10} {:>9} at {:#x}, {state}",
            loaded.name(),
            format!("{}", Size(loaded.bytes())),
            loaded.address()
        );
    }
    for name in module::loadable().into_iter().filter(|name| !module::is_loaded(name)) {
        say!("{name:<10} not loaded; `insmod {name}` loads it");
    }
    Ok(())
}

fn insmod(node: &Node, arguments: &[&str]) -> Done {
    let [name] = arguments else { return Err(INSMOD.wrong_use()) };
    module::load(name, node.configuration())?;
    say!("{name} is loaded");
    Ok(())
}

fn rmmod(_node: &Node, arguments: &[&str]) -> Done {
    let [name] = arguments else { return Err(RMMOD.wrong_use()) };
    let counts = module::unload(name)?;
    say!("{name} is unloaded, and nothing of it is left; before it came and after it went:");
    say!("  {counts}");
    Ok(())
}

/// The modules that could be loaded.
pub(super) fn loadable() -> Vec<String> {
    module::loadable()
}

/// For a word that no command has.
pub(super) fn unknown(name: &str) -> Trouble {
    match module::loadable().iter().any(|module| module == name) {
        true => Trouble::from(format!("the module {name} is not loaded; `insmod {name}` loads it")),
        false => Trouble::from(format!("no command is called {name}; `help` lists them")),
    }
}
