//! What the shell's commands are made of: lines for the person at the console, and troubles.
//!
//! The shell itself is the kernel's. This much of it lies down here because a module brings commands
//! of its own, and a module knows nothing above `kcore`.

use alloc::string::String;
use core::fmt::{self, Write};

use crate::console;

/// Why a command did not do what was asked, and what to do about it.
pub struct Trouble(String);

impl Trouble {
    /// The words for the person.
    pub fn why(&self) -> &str {
        &self.0
    }
}

impl<T: fmt::Display> From<T> for Trouble {
    fn from(why: T) -> Self {
        Trouble(alloc::format!("{why}"))
    }
}

/// What came of a command.
pub type Done = Result<(), Trouble>;

/// What `help` says about a command of a module.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// The words behind the name.
    pub usage: &'static str,
    /// What it does.
    pub help: &'static str,
}

impl Command {
    /// For words that the command does not know.
    pub fn wrong_use(&self) -> Trouble {
        Trouble(alloc::format!("usage: {} {}", self.name, self.usage))
    }
}

/// Writes a line to the console, in one piece, so that no line of the log falls into its middle.
/// [`say!`](crate::say) is how it is called.
pub fn write_line(line: fmt::Arguments<'_>) {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
    console::print(text.as_bytes());
}

/// Writes a line for the person at the console.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => { $crate::shell::write_line(::core::format_args!($($part)*)) };
}

/// A duration for people: the unit that keeps it short.
#[derive(Clone, Copy, Debug)]
pub struct Duration(pub u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 10_000 => write!(f, "{ns} ns"),
            ns if ns < 10_000_000 => write!(f, "{} us", ns / 1000),
            ns if ns < 10_000_000_000 => write!(f, "{} ms", ns / 1_000_000),
            ns => write!(f, "{} s", ns / 1_000_000_000),
        }
    }
}

/// A number of bytes for people.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 10 << 10 => write!(f, "{bytes} B"),
            bytes if bytes < 10 << 20 => write!(f, "{} KiB", bytes >> 10),
            bytes if bytes < 10 << 30 => write!(f, "{} MiB", bytes >> 20),
            bytes => write!(f, "{} GiB", bytes >> 30),
        }
    }
}
