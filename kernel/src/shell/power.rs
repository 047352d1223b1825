//! Commands that end the node.

use super::{Command, Done};
use crate::node::Node;

pub(super) const COMMANDS: &[Command] = &[POWEROFF, REBOOT];

const POWEROFF: Command = Command {
    name: "poweroff",
    usage: "",
    help: "stops the guests and turns the machine off",
    run: poweroff,
};
const REBOOT: Command =
    Command { name: "reboot", usage: "", help: "stops the guests and starts the machine again", run: reboot };

fn poweroff(node: &Node, arguments: &[&str]) -> Done {
    POWEROFF.alone(arguments)?;
    node.stop_everything();
    super::say!("{}", announce::Announcement::PowerOff);
    kcore::power::off()
}

fn reboot(node: &Node, arguments: &[&str]) -> Done {
    REBOOT.alone(arguments)?;
    node.stop_everything();
    kcore::power::reboot()
}
