//! Modules: rooms of the node that come and go while it runs.
//!
//! A module is a crate over the same rooms as the kernel. It hands the kernel one thing, a
//! [`Module`]: its commands, why it may not be unloaded now, and its end, which is its drop. What a
//! module registers it holds as values whose drop gives them back (a softirq, an interrupt, a port
//! binding, a task that is joined), so that its end is the end of its fields.
//!
//! The code of a module must not go while anybody could still be in it. The order of an end is
//! therefore: no instance runs ([`Module::busy`]); the module is dropped; everybody who was inside has
//! left (its tasks have ended, and [`softirq::quiesce`] has seen every softirq and interrupt handler
//! end); nothing that can be called is the module's any more ([`Balance::of`]); its memory goes.
//!
//! A module's file comes from the boot archive. What `modfile` checks of it, and what it cannot, stands
//! there; why a module is made as it is, in docs/decisions/0010-modules.md.

mod image;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use arch::paging::MapError;
use image::Image;
pub use image::MOST_MODULES;
pub(crate) use image::function_at;
use modfile::{Exports, ExportsFault, Fault};

use crate::balance::{Balance, Whose};
use crate::memory::OutOfMemory;
use crate::mutex::Mutex;
use crate::shell::{Command, Done};
use crate::{archive, softirq, task, time};

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
pub type Entry = fn(configuration: &'static [u8]) -> Begun;

/// A module, or why it does not want to begin.
pub type Begun = Result<Box<dyn Module>, String>;

/// Names the function with which a module begins, an [`Entry`]. The exported name lives here so that
/// modules can forbid `unsafe`.
#[macro_export]
macro_rules! module {
    ($function:path) => {
        #[unsafe(no_mangle)]
        fn nos_module(configuration: &'static [u8]) -> $crate::module::Begun {
            let function: $crate::module::Entry = $function;
            function(configuration)
        }
    };
}

/// Where the boot archive keeps modules, and how their files end.
const FOLDER: &str = "modules/";
const ENDING: &str = ".ko";

/// How long the tasks of a module may take to leave, once it has ended.
const LEAVE_NS: u64 = 5_000_000_000;

/// Why a module was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// It is loaded.
    Already,
    /// It was, and something of it is left.
    Left,
    /// The boot archive has no such module.
    NoSuchFile,
    /// The kernel exports nothing.
    Exports(ExportsFault),
    /// The file is not for this kernel, or not whole.
    File(Fault<'static>),
    /// Its name is.
    LongName,
    /// It is larger than a slot of the module area.
    TooLarge,
    /// Every slot is taken.
    TooMany,
    /// There is no memory for it.
    Memory(OutOfMemory),
    /// It cannot be mapped.
    Map(MapError),
    /// It was loaded and does not want to begin.
    Refused(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Already => f.write_str("it is loaded already; `lsmod` lists what is"),
            LoadError::Left => {
                f.write_str("something of it is left from the last time, and its code with it")
            }
            LoadError::NoSuchFile => {
                let there_are = loadable().join(", ");
                let there_are = if there_are.is_empty() { "none" } else { &there_are };
                write!(f, "the boot archive has no such module; it has: {there_are}")
            }
            LoadError::Exports(fault) => fault.fmt(f),
            LoadError::File(fault) => fault.fmt(f),
            LoadError::LongName => f.write_str("its name is too long"),
            LoadError::TooLarge => f.write_str("it is larger than a module may be"),
            LoadError::TooMany => write!(f, "there are {MOST_MODULES} modules already"),
            LoadError::Memory(error) => error.fmt(f),
            LoadError::Map(error) => write!(f, "it cannot be mapped: {error:?}"),
            LoadError::Refused(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for LoadError {}

impl From<Fault<'static>> for LoadError {
    fn from(fault: Fault<'static>) -> Self {
        LoadError::File(fault)
    }
}

/// Why a module was not unloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnloadError {
    /// There is none of that name.
    NotLoaded,
    /// Something of it runs; the text says what to do.
    Busy(String),
    /// It has ended, but something of it is left, so that its memory stays.
    Left(String),
}

impl fmt::Display for UnloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnloadError::NotLoaded => f.write_str("it is not loaded; `lsmod` lists what is"),
            UnloadError::Busy(why) => write!(f, "it is in use: {why}"),
            UnloadError::Left(what) => {
                write!(f, "it has ended, but left {what}: its memory stays, and it cannot be loaded again")
            }
        }
    }
}

impl core::error::Error for UnloadError {}

/// A module that is there.
pub struct Loaded {
    name: String,
    // Goes before the code that ends it.
    instance: Box<dyn Module>,
    image: Image,
    before: Balance,
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

    /// Bytes of memory that its code, constants and data take.
    pub fn bytes(&self) -> u64 {
        (self.image.pages() * crate::memory::PAGE_BYTES) as u64
    }

    /// Where it lies.
    pub fn address(&self) -> usize {
        self.image.addresses().start
    }
}

static LOADED: Mutex<Vec<Arc<Loaded>>> = Mutex::new(Vec::new());
/// The names of modules whose memory had to stay: a second of the name would run beside what is left.
static LEFT: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// One module at a time comes or goes. Before the lock of `LOADED`.
static TURN: Mutex<()> = Mutex::new(());

/// Every module, in the order in which they came.
pub fn list() -> Vec<Arc<Loaded>> {
    LOADED.lock().clone()
}

/// Whether the module `name` is there.
pub fn is_loaded(name: &str) -> bool {
    LOADED.lock().iter().any(|loaded| loaded.name == name)
}

/// The modules that the boot archive has.
pub fn loadable() -> Vec<String> {
    let name_of = |path: &str| path.strip_prefix(FOLDER)?.strip_suffix(ENDING).map(String::from);
    archive::list().iter().filter_map(|(path, _)| name_of(path)).collect()
}

/// Loads the module `name` from the boot archive and begins it. Tasks only.
pub fn load(name: &str, configuration: &'static [u8]) -> Result<(), LoadError> {
    let _turn = TURN.lock();
    if is_loaded(name) {
        return Err(LoadError::Already);
    }
    if LEFT.lock().iter().any(|left| left == name) {
        return Err(LoadError::Left);
    }
    let path = alloc::format!("{FOLDER}{name}{ENDING}");
    let file = archive::file(&path).ok_or(LoadError::NoSuchFile)?;
    drop(path);
    let exports = Exports::check(arch::boot::exports()).map_err(LoadError::Exports)?;
    // Room for it, so that the list itself is not taken for something left behind.
    LOADED.lock().reserve(MOST_MODULES);
    let before = Balance::take();
    let image = Image::new(name, file, exports)?;
    match image.entry()(configuration) {
        Ok(instance) => {
            let name = String::from(name);
            LOADED.lock().push(Arc::new(Loaded { name, instance, image, before }));
            Ok(())
        }
        Err(why) => match leave(name, image) {
            Ok(()) => Err(LoadError::Refused(why)),
            Err(what) => Err(LoadError::Refused(alloc::format!("{why}; and it left {what}"))),
        },
    }
}

/// Ends the module `name` and takes it away. The counts of before it was loaded and of after it has
/// gone, for people. Tasks only, and not one of the module's.
pub fn unload(name: &str) -> Result<String, UnloadError> {
    let _turn = TURN.lock();
    let loaded = {
        let mut all = LOADED.lock();
        let place = all.iter().position(|loaded| loaded.name == name).ok_or(UnloadError::NotLoaded)?;
        if let Some(why) = all[place].instance.busy() {
            return Err(UnloadError::Busy(why));
        }
        all.remove(place)
    };
    let Loaded { name: _, instance, image, before } = match Arc::try_unwrap(loaded) {
        Ok(loaded) => loaded,
        Err(shared) => {
            LOADED.lock().push(shared);
            return Err(UnloadError::Busy(String::from("one of its commands runs")));
        }
    };
    drop(instance);
    leave(name, image).map_err(UnloadError::Left)?;
    let after = Balance::take();
    Ok(after.beside(&before))
}

/// Takes a module's memory away once nobody can be in it any more. If something of it is left, the
/// memory stays for good, and what was left is said.
fn leave(name: &str, image: Image) -> Result<(), String> {
    let whose = Whose::of(image.addresses());
    let left = match task::join_all_of(&whose, time::now_ns() + LEAVE_NS) {
        Err(task) => Some(alloc::format!("the task {task}")),
        Ok(()) => {
            softirq::quiesce();
            let left = Balance::of(&whose);
            let left: Vec<String> =
                left.not_zero().map(|count| alloc::format!("{} {}", count.number, count.name)).collect();
            (!left.is_empty()).then(|| left.join(", "))
        }
    };
    match left {
        None => {
            drop(image);
            Ok(())
        }
        Some(what) => {
            core::mem::forget(image);
            LEFT.lock().push(String::from(name));
            Err(what)
        }
    }
}
