//! `cargo xtask`: the one door for people.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use xtask::node::DEFAULT_NAME;
use xtask::{bench, cleanup, fuzz, image, lint, test, up, workspace};

/// Builds, boots, tests, measures and checks nos.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the node and its guests, boot it, and show what is reachable and how
    Up(up::Options),
    /// End a node
    Down {
        /// Which one
        #[arg(long, default_value = DEFAULT_NAME)]
        name: String,
    },
    /// Attach this terminal to a node that is up
    Console {
        /// Which one
        #[arg(long, default_value = DEFAULT_NAME)]
        name: String,
    },
    /// Run test suites; without a name, all of them
    Test {
        /// Which ones: `cargo xtask test --list` names them
        suites: Vec<String>,
        /// Name the suites, and run nothing
        #[arg(long)]
        list: bool,
    },
    /// Measure, and write Markdown, JSON and a plot under target/bench/; without a name, list what can be measured
    Bench(bench::Options),
    /// Feed a target with random input for some time; without a name, list the targets
    Fuzz {
        target: Option<String>,
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Build an image that boots by BIOS and by UEFI, from a disk or a CD
    Image {
        /// The node's configuration
        #[arg(long, value_name = "FILE", default_value = "nos.toml")]
        config: PathBuf,
    },
    /// Check the rules of the house
    Lint {
        /// Write the present counts of unsafe into docs/unsafe.toml
        #[arg(long)]
        record_unsafe: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = run(arguments.command);
    cleanup::undo_all();
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    cleanup::install()?;
    let command = with_absolute_paths(command)?;
    workspace::enter_root()?;
    match command {
        Command::Up(options) => up::up(&options)?,
        Command::Down { name } => up::down(&name)?,
        Command::Console { name } => up::console(&name)?,
        Command::Test { list: true, .. } => test::list(),
        Command::Test { suites, list: false } => return test::run(&suites),
        Command::Bench(options) => bench::measure(&options)?,
        Command::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds)?,
        Command::Image { config } => image::run(&config)?,
        Command::Lint { record_unsafe: true } => lint::record_unsafe()?,
        Command::Lint { record_unsafe: false } => {
            let failed = lint::run()?.iter().filter(|check| !check.passed()).count();
            if failed > 0 {
                println!("{failed} of the rules are broken");
                return Ok(ExitCode::FAILURE);
            }
            println!("all rules hold");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Paths on the command line count from where the person is, and this program goes to the root. The default
/// configuration is the root's.
fn with_absolute_paths(mut command: Command) -> Result<Command> {
    let default = PathBuf::from("nos.toml");
    let make_absolute = |path: &mut PathBuf| -> Result<()> {
        if *path != default || path.exists() {
            *path = std::path::absolute(&*path)?;
        }
        Ok(())
    };
    match &mut command {
        Command::Up(options) => {
            make_absolute(&mut options.config)?;
            if let Some(disk) = &mut options.disk {
                make_absolute(disk)?;
            }
        }
        Command::Image { config } => make_absolute(config)?,
        _ => {}
    }
    Ok(command)
}
