//! The command `netblk`.

#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGINT;
use signal_hook::flag;

fn main() -> ExitCode {
    let arguments = cli::parse(std::env::args_os());
    let interrupted = Arc::new(AtomicBool::new(false));
    // The second Ctrl-C ends the program at once: the handlers run in the order of registration.
    let armed = flag::register_conditional_shutdown(SIGINT, 130, interrupted.clone())
        .and_then(|_| flag::register(SIGINT, interrupted.clone()));
    if let Err(error) = armed {
        eprintln!("netblk: Ctrl-C will end this at once: {error}");
    }
    match cli::run(&arguments, interrupted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netblk: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
