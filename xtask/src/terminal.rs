//! The person's terminal as the node's console.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::termios::{self, OptionalActions};

use crate::cleanup::Cleanup;

/// Ctrl-\. Not Ctrl-], which the node's own shell has for leaving a guest's console.
const DETACH: u8 = 0x1c;
/// Ctrl-C.
const INTERRUPT: u8 = 0x03;

/// Why the terminal is the person's own again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    ByPerson,
    ByNode,
}

/// Whether Ctrl-C is for the node or for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlC {
    /// Like Ctrl-\: the node belongs to this terminal.
    Ends,
    /// To the node's shell, which gives the line up.
    GoesToNode,
}

/// Connects terminal and console until one of them has had enough. `shown` is what the console has on its last line.
pub fn attach(mut stream: UnixStream, shown: &[u8], control_c: ControlC) -> Result<Ended> {
    let raw = raw_mode()?;
    let mut output = io::stdout();
    output.write_all(shown).and_then(|()| output.flush()).context("writing to the terminal")?;
    let mut input = io::stdin();
    let mut input_open = true;
    stream.set_read_timeout(None).context("preparing the console")?;
    let mut buffer = [0; 4096];
    let ended = loop {
        let (from_node, from_person) = {
            let node = PollFd::new(&stream, PollFlags::IN);
            let person = PollFd::new(&input, PollFlags::IN);
            let mut sources = [node, person];
            let watched = if input_open { 2 } else { 1 };
            match rustix::event::poll(&mut sources[..watched], None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled.context("waiting for the console")?,
            };
            (!sources[0].revents().is_empty(), input_open && !sources[1].revents().is_empty())
        };
        if from_node {
            match stream.read(&mut buffer) {
                Ok(0) => break Ended::ByNode,
                Ok(length) => output
                    .write_all(&buffer[..length])
                    .and_then(|()| output.flush())
                    .context("writing to the terminal")?,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break Ended::ByNode,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("reading the console"),
            }
        }
        if from_person {
            let length = input.read(&mut buffer).context("reading the terminal")?;
            // A pipe that has ended, or /dev/null: there is nobody to type, but the console goes on.
            input_open = length > 0;
            let ends = |byte: &u8| *byte == DETACH || (*byte == INTERRUPT && control_c == ControlC::Ends);
            match buffer[..length].iter().position(ends) {
                Some(_) => break Ended::ByPerson,
                None => stream.write_all(&buffer[..length]).context("writing to the console")?,
            }
        }
    };
    drop(raw);
    println!();
    Ok(ended)
}

/// Raw mode, until the value is dropped. Without a terminal there is nothing to do.
fn raw_mode() -> Result<Option<Cleanup>> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    let before = termios::tcgetattr(io::stdin()).context("asking for the terminal's mode")?;
    let mut raw = before.clone();
    raw.make_raw();
    termios::tcsetattr(io::stdin(), OptionalActions::Flush, &raw).context("setting the terminal's mode")?;
    Ok(Some(Cleanup::new(move || {
        // If the terminal is gone there is nobody to mind its mode.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Flush, &before);
    })))
}
