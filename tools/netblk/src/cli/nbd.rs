//! `netblk nbd`: the bridge, from the command line.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use clap::Args;
use netblk::disk::{Disk, Request};
use netblk::nbd::{self, Export, Listen};
use netblk::size::show_size;
use netblk::{Error, Options};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

use super::access::Access;

/// Lines about clients that may wait to be printed; more are left out.
const LINES: usize = 256;

// Many clients, or one with a deep queue, share this one window.
#[derive(Debug, Args)]
#[command(mut_arg("window", |window| window.default_value("64")))]
pub struct Arguments {
    #[command(flatten)]
    access: Access,
    /// Where clients come in: ADDRESS:PORT, or unix:PATH. There is no password: whoever reaches it has the disk.
    #[arg(long, default_value = "127.0.0.1:10809")]
    listen: Listen,
    /// The export's name; clients may also leave it out.
    #[arg(long, default_value = "disk")]
    export: String,
    /// Refuse whatever would change the disk.
    #[arg(long)]
    read_only: bool,
    /// Seconds without the server before clients get an error; for ever if not given.
    #[arg(long, value_name = "SECONDS")]
    patience: Option<u64>,
}

/// Serves until a signal.
///
/// # Errors
/// If the disk cannot be had, or the address.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let stop = signals().map_err(Error::local("catching signals"))?;
    let patience = arguments.patience.map_or(Duration::MAX, Duration::from_secs);
    let options = Options { patience, busy_patience: patience, ..arguments.access.options()? };
    let disk = Disk::open(&arguments.access.target, &options)?;
    let info = disk.info();
    let export = Export {
        name: arguments.export.clone(),
        disk: Arc::new(disk.clone()),
        read_only: arguments.read_only,
    };
    let ready = |listen: &Listen| {
        eprintln!(
            "{} of {} ({}{}, netblk version {}) at {listen}",
            arguments.export,
            arguments.access.target,
            show_size(info.size_bytes),
            if info.read_only || arguments.read_only { ", read-only" } else { "" },
            info.version
        );
    };
    // Nobody may be reading what is printed: a full pipe must hold up neither a client nor the end.
    let (lines, taken) = mpsc::sync_channel::<String>(LINES);
    let (printed, all_printed) = mpsc::channel();
    thread::spawn(move || {
        taken.iter().for_each(|line| eprintln!("{line}"));
        let _ = printed.send(());
    });
    nbd::run(&arguments.listen, &export, stop.as_fd(), ready, move |line| drop(lines.try_send(line)))?;
    let _ = all_printed.recv_timeout(Duration::from_secs(1));
    if !info.read_only {
        disk.ask(Request::Flush).map_err(Error::Shared)?;
    }
    Ok(())
}

/// Becomes readable with the first SIGTERM or SIGINT. The second SIGTERM ends the program at once, as the second SIGINT does
/// everywhere (main.rs): a client that takes no answers would otherwise keep it for ever.
fn signals() -> std::io::Result<UnixStream> {
    let (stop, signalled) = UnixStream::pair()?;
    let again = Arc::new(AtomicBool::new(false));
    flag::register_conditional_shutdown(SIGTERM, 143, again.clone())?;
    flag::register(SIGTERM, again)?;
    pipe::register(SIGTERM, signalled.try_clone()?)?;
    pipe::register(SIGINT, signalled)?;
    Ok(stop)
}
