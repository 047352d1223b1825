//! The shell on the serial console.
//!
//! One task reads the console and runs one command at a time. A command is a name, a line of help
//! and a function; what it cannot do it says as a [`Trouble`], which names the cause and what to
//! do about it.

mod devices;
mod disk;
mod machine;
mod modules;
mod power;

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kcore::console;
use kcore::module;
use kcore::say;
use kcore::shell::{Done, Duration, Size, Trouble};
use lineedit::{Complete, LineEditor, Outcome};

use crate::node::Node;

/// What the shell shows when it waits. The stories wait for it.
pub const PROMPT: &str = "nos> ";

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
        Trouble::from(alloc::format!("usage: {} {}", self.name, self.usage))
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

/// The kernel's own commands, in the order in which `help` shows them. Those of modules come behind.
static COMMANDS: &[&[Command]] =
    &[&[HELP], machine::COMMANDS, devices::COMMANDS, disk::COMMANDS, modules::COMMANDS, power::COMMANDS];

fn commands() -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter().copied().flatten()
}

/// The module that brings the command `name`.
fn module_with(name: &str) -> Option<Arc<module::Loaded>> {
    module::list()
        .into_iter()
        .find(|loaded| loaded.module().commands().iter().any(|command| command.name == name))
}

struct Words;

impl Complete for Words {
    fn complete(&self, before_cursor: &str, candidates: &mut Vec<String>) {
        let mut words: Vec<&str> = before_cursor.split(' ').collect();
        words.pop();
        match words.as_slice() {
            [] | ["help"] => {
                candidates.extend(commands().map(|command| String::from(command.name)));
                for loaded in module::list() {
                    candidates
                        .extend(loaded.module().commands().iter().map(|command| String::from(command.name)));
                }
            }
            ["disk"] => candidates.extend(disk::VERBS.map(String::from)),
            ["disk", _] => {
                candidates.extend(kcore::block::disks().iter().map(|disk| String::from(disk.name())));
            }
            ["insmod"] => candidates.extend(modules::loadable()),
            ["rmmod"] => candidates.extend(module::list().iter().map(|loaded| String::from(loaded.name()))),
            [name, ..] => {
                if let Some(loaded) = module_with(name) {
                    loaded.module().complete(&words, candidates);
                }
            }
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
        let outcome = editor.feed(console::read_byte(), &Words, &mut screen);
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
    let done = match (commands().find(|command| command.name == name), module_with(name)) {
        (Some(command), _) => (command.run)(node, arguments),
        (None, Some(loaded)) => loaded.module().run(name, arguments),
        (None, None) => Err(modules::unknown(name)),
    };
    if let Err(trouble) = done {
        say!("{name}: {}", trouble.why());
    }
}

fn help(_node: &Node, arguments: &[&str]) -> Done {
    match arguments {
        [] => {
            for command in commands() {
                say_help(command.name, command.usage, command.help);
            }
            for loaded in module::list() {
                for command in loaded.module().commands() {
                    say_help(command.name, command.usage, command.help);
                }
            }
            say!("Tab completes, the arrows recall; what a command prints is explained in docs/shell.md.");
            Ok(())
        }
        [name] => {
            if let Some(command) = commands().find(|command| command.name == *name) {
                say!("{} {}\n  {}", command.name, command.usage, command.help);
                return Ok(());
            }
            let loaded = module_with(name).ok_or_else(|| modules::unknown(name).why().to_owned())?;
            for command in loaded.module().commands().iter().filter(|command| command.name == *name) {
                say!("{} {}\n  {}", command.name, command.usage, command.help);
            }
            Ok(())
        }
        _ => Err(HELP.wrong_use()),
    }
}

/// A line of `help`, or two.
fn say_help(name: &str, usage: &str, help: &str) {
    let left = alloc::format!("{name} {usage}");
    if left.len() <= HELP_COLUMN {
        say!("  {left:<HELP_COLUMN$} {help}");
    } else {
        say!("  {left}\n  {:<HELP_COLUMN$} {help}", "");
    }
}
