//! The shell on the serial console.
//!
//! One task reads the console and runs one command at a time. A command is a name, a line of help
//! and a function; what it cannot do it says as a [`Trouble`], which names the cause and what to
//! do about it.

mod devices;
mod disk;
mod guests;
mod machine;
mod netblk;
mod power;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use kcore::console;
use lineedit::{Complete, LineEditor, Outcome};

use crate::node::Node;

/// What the shell shows when it waits. The stories wait for it.
pub const PROMPT: &str = "nos> ";

/// Why a command did not do what was asked, and what to do about it.
pub struct Trouble(String);

impl<T: fmt::Display> From<T> for Trouble {
    fn from(why: T) -> Self {
        Trouble(alloc::format!("{why}"))
    }
}

type Done = Result<(), Trouble>;

/// One command.
struct Command {
    name: &'static str,
    /// The words behind the name.
    usage: &'static str,
    help: &'static str,
    run: fn(&Node, &[&str]) -> Done,
}

impl Command {
    fn wrong_use(&self) -> Trouble {
        Trouble(alloc::format!("usage: {} {}", self.name, self.usage))
    }

    /// For a command that takes no words.
    fn alone(&self, arguments: &[&str]) -> Done {
        if arguments.is_empty() { Ok(()) } else { Err(self.wrong_use()) }
    }
}

/// Where `help` begins to say what a command does.
const HELP_COLUMN: usize = 30;

const HELP: Command =
    Command { name: "help", usage: "[COMMAND]", help: "this list, or what one command takes", run: help };

/// Every command, in the order in which `help` shows them.
static COMMANDS: &[&[Command]] = &[
    &[HELP],
    machine::COMMANDS,
    disk::COMMANDS,
    devices::COMMANDS,
    guests::COMMANDS,
    netblk::COMMANDS,
    power::COMMANDS,
];

fn commands() -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter().copied().flatten()
}

/// Text for the person at the console.
struct Out;

impl Write for Out {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        console::print(text.as_bytes());
        Ok(())
    }
}

/// Writes a line to the console.
macro_rules! say {
    ($($part:tt)*) => {{
        use core::fmt::Write as _;
        // One write a line, so that no log line falls into the middle of it.
        let line = alloc::format!("{}\n", format_args!($($part)*));
        let _ = $crate::shell::Out.write_str(&line);
    }};
}
use say;

struct Words<'n>(&'n Node);

impl Complete for Words<'_> {
    fn complete(&self, before_cursor: &str, candidates: &mut Vec<String>) {
        let mut words: Vec<&str> = before_cursor.split(' ').collect();
        words.pop();
        match words.as_slice() {
            [] | ["help"] => candidates.extend(commands().map(|command| String::from(command.name))),
            ["hv"] => candidates.extend(["list", "start", "stop", "console", "stat"].map(String::from)),
            ["hv", _] => candidates.extend(self.0.guest_names()),
            ["disk"] => candidates.extend(disk::VERBS.map(String::from)),
            ["disk", _] => {
                candidates.extend(kcore::block::disks().iter().map(|disk| String::from(disk.name())));
            }
            ["netblk"] => candidates.extend(["start", "list", "stop"].map(String::from)),
            ["netblk", "start"] => {
                candidates.extend(kcore::block::disks().iter().map(|disk| String::from(disk.name())));
            }
            _ => {}
        }
    }
}

/// Reads and runs commands, for ever.
pub fn run(node: &Node) -> ! {
    let mut editor = LineEditor::new(PROMPT);
    let mut screen = Vec::new();
    let mut row = Vec::new();
    editor.prompt(&mut screen);
    loop {
        // The console draws the row again behind a log line that comes while somebody types.
        row.clear();
        editor.prompt(&mut row);
        console::print_row(&screen, &row);
        screen.clear();
        let outcome = editor.feed(console::read_byte(), &Words(node), &mut screen);
        if outcome == Outcome::Editing {
            continue;
        }
        console::print_row(&screen, &[]);
        screen.clear();
        match outcome {
            Outcome::Line(line) => run_line(node, &line),
            Outcome::EndOfInput => {
                say!("The shell is the node's own and does not end; `poweroff` ends the node.")
            }
            Outcome::Editing | Outcome::Interrupted => {}
        }
        editor.prompt(&mut screen);
    }
}

fn run_line(node: &Node, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let Some((&name, arguments)) = words.split_first() else { return };
    let done = match commands().find(|command| command.name == name) {
        Some(command) => (command.run)(node, arguments),
        None => Err(Trouble(alloc::format!("no command is called {name}; `help` lists them"))),
    };
    if let Err(Trouble(why)) = done {
        say!("{name}: {why}");
    }
}

fn help(_node: &Node, arguments: &[&str]) -> Done {
    match arguments {
        [] => {
            for command in commands() {
                let left = alloc::format!("{} {}", command.name, command.usage);
                if left.len() <= HELP_COLUMN {
                    say!("  {left:<HELP_COLUMN$} {}", command.help);
                } else {
                    say!("  {left}\n  {:<HELP_COLUMN$} {}", "", command.help);
                }
            }
            say!("Tab completes, the arrows recall; what a command prints is explained in docs/shell.md.");
            Ok(())
        }
        [name] => {
            let command = commands()
                .find(|command| command.name == *name)
                .ok_or_else(|| alloc::format!("no command is called {name}; `help` lists them"))?;
            say!("{} {}", command.name, command.usage);
            say!("  {}", command.help);
            Ok(())
        }
        _ => Err(HELP.wrong_use()),
    }
}

/// A duration for people: the unit that keeps it short.
struct Duration(u64);

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
struct Size(u64);

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
