//! The kernel: takes the machine from the boot loader and assembles the rooms.
//!
//! A library, and not the binary itself (which is its entry and no more), because modules share what
//! the kernel is made of: the libraries are built first, then the modules are made and looked through for
//! the names that they want of the kernel, and then the kernel is linked with a table of those names.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod node;
mod shell;

use announce::Announcement;
use arch::boot::BootInfo;
use config::Config;
use kcore::{archive, selftest};

use crate::node::Node;

/// Takes the machine over. `build` names this build of the kernel, to tell it from others.
pub fn start(boot: &'static BootInfo, build: &str) -> ! {
    kcore::init(boot);
    log::info!("nos {}, build {build}, booted by {:?}", env!("CARGO_PKG_VERSION"), boot.protocol);
    kcore::run(first_task)
}

/// The first task: tests the timers, reads the configuration, assembles the node, serves the shell.
fn first_task() {
    check_timers();
    let (config, text) = read_configuration();
    log::info!("{}", Announcement::ShellReady { at_ms: node::now_ms() });
    Node::start_drivers(&config);
    let node = Node::assemble(&config, text);
    log::info!("{}", Announcement::ConfigurationDone { at_ms: node::now_ms() });
    shell::run(&node)
}

/// The boot self-test: 1 ms sleeps must not take a tick. A node whose timers do not work would
/// serve everything late, so it does not start.
fn check_timers() {
    let results = match selftest::timer() {
        Ok(results) => results,
        Err(error) => panic!("the timer self-test could not run: {error}"),
    };
    for result in &results {
        log::debug!("timer self-test: CPU {}: {} us for 1 ms", result.cpu, result.median_ns / 1000);
    }
    let slowest = results.iter().map(|result| result.median_ns).max().unwrap_or(0);
    if results.iter().any(|result| !result.passed()) {
        panic!("timer self-test failed: a sleep of 1 ms takes {} us", slowest / 1000);
    }
    log::info!("timer self-test passed on {} CPUs: 1 ms takes {} us", results.len(), slowest / 1000);
}

/// The configuration, and its text for the modules.
fn read_configuration() -> (Config, &'static [u8]) {
    let Some(file) = archive::file("nos.toml") else {
        log::warn!("the boot archive has no nos.toml: no guests and no services are configured");
        return (Config::default(), &[]);
    };
    let (config, problems) = config::parse(file);
    for problem in problems {
        log::error!("{problem}");
    }
    (config, file)
}
