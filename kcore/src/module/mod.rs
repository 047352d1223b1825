//! Modules: rooms of the node that come and go while it runs.
//!
//! A module is a crate over the same rooms as the kernel. It hands the kernel one thing, a
//! [`Module`]: its commands, why it may not be unloaded now, and its end, which is its drop. What a
//! module registers it holds as values whose drop gives them back (a softirq, an interrupt, a port
//! binding, a task that is joined), so that its end is the end of its fields.
//!
//! The code of a module must not go while anybody could still be in it. The order of an end is
//! therefore: no instance runs ([`Module::busy`]), the module is dropped, everybody who was inside
//! has left ([`crate::softirq::quiesce`] for softirqs and interrupt handlers, [`crate::task::join_all_in`]
//! for tasks), and what is counted is compared with what was there before ([`crate::balance`]).

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::mutex::Mutex;
use crate::shell::{Command, Done};

/// A module at work. Dropped, by a task, it gives back all that it took.
pub trait Module: Send + Sync {
    /// The commands that it brings.
    fn commands(&self) -> &'static [Command];

    /// Runs one of its commands.
    fn run(&self, command: &str, arguments: &[&str]) -> Done;

    /// The words that may follow `words`, the first of which is one of its commands.
    fn complete(&self, words: &[&str], candidates: &mut Vec<String>);

    /// What it adds to what a command of the node shows.
    fn report(&self, command: &str) -> Vec<String> {
        let _ = command;
        Vec::new()
    }

    /// Why it cannot be unloaded now, and what to do about it. `None` if nothing of it runs.
    fn busy(&self) -> Option<String>;

    /// Ends what runs, before the node goes off.
    fn stop_everything(&self);
}

/// How a module begins: with the text of the node's configuration, of which it does what concerns it.
pub type Entry = fn(configuration: &'static [u8]) -> Result<Box<dyn Module>, String>;

/// A module that is there.
pub struct Loaded {
    name: String,
    instance: Box<dyn Module>,
}

impl Loaded {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    pub fn module(&self) -> &dyn Module {
        &*self.instance
    }
}

static LOADED: Mutex<Vec<Arc<Loaded>>> = Mutex::new(Vec::new());

/// Every module, in the order in which they came.
pub fn list() -> Vec<Arc<Loaded>> {
    LOADED.lock().clone()
}

/// The module called `name`.
pub fn find(name: &str) -> Option<Arc<Loaded>> {
    LOADED.lock().iter().find(|loaded| loaded.name == name).cloned()
}

/// Begins a module that is part of the kernel's own image.
pub fn begin(name: &str, entry: Entry, configuration: &'static [u8]) -> Result<(), String> {
    let instance = entry(configuration)?;
    LOADED.lock().push(Arc::new(Loaded { name: String::from(name), instance }));
    Ok(())
}
