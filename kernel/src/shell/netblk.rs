//! Commands about the block service.

use announce::Announcement;
use netblk_server::StartOptions;

use super::{Command, Done, say};
use crate::node::Node;

pub(super) const COMMANDS: &[Command] = &[NETBLK];

const NETBLK: Command = Command {
    name: "netblk",
    usage: "start DISK PORT [ro] [nic=eth0] [mtu=1500] [cpu=N] [poll=US] | list | stop PORT|all",
    help: "serves disks over UDP",
    run: netblk,
};

fn netblk(node: &Node, arguments: &[&str]) -> Done {
    match arguments {
        ["start", options @ ..] => {
            let started = netblk_server::start(node.stacks(), StartOptions::parse(options.iter().copied())?)?;
            say!("{}", Announcement::Netblk { disk: &started.disk, port: started.port });
        }
        ["list"] => {
            let services = netblk_server::list();
            if services.is_empty() {
                say!("nothing is served; `netblk start DISK PORT` serves a disk");
            }
            for service in services {
                say!("{service}");
                for line in service.counter_lines() {
                    say!("  {line}");
                }
            }
        }
        ["stop", "all"] => {
            for report in netblk_server::stop_all() {
                say!("{report}");
            }
        }
        ["stop", port] => {
            let port = port
                .parse()
                .map_err(|_| alloc::format!("{port} is no UDP port; `netblk list` shows those served"))?;
            say!("{}", netblk_server::stop(port)?);
        }
        _ => return Err(NETBLK.wrong_use()),
    }
    Ok(())
}
