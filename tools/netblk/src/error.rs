//! What can go wrong, what to do about it, and the exit code that says which it was.

use netblk_proto::InfoError;
use netblk_proto::v2::{Op, Status};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a command failed.
#[derive(Debug)]
pub enum Error {
    /// The target cannot be made into an address.
    Target {
        /// As it was given.
        target: String,
        /// Why.
        why: String,
    },
    /// The server did not answer.
    NoAnswer {
        /// Who was asked.
        target: String,
        /// For what.
        op: Op,
        /// How often.
        tries: u32,
        /// For how long.
        waited: Duration,
        /// Whether the host said that nobody listens there.
        refused: bool,
    },
    /// The server answered "busy" for too long.
    StillBusy {
        /// For how long.
        waited: Duration,
    },
    /// The server refused the request, or its disk failed.
    Refused {
        /// What was asked.
        op: Op,
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// The answer.
        status: Status,
    },
    /// The server will not have this client.
    NoSession,
    /// The server wants a key, and none was given.
    KeyNeeded,
    /// After a restart of the server the device is another.
    Changed,
    /// After a restart of the server a change that had been answered could not be made again.
    Forgotten {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// The server's reason.
        status: Status,
    },
    /// The server describes a device that cannot be.
    Nonsense(InfoError),
    /// The request cannot be made as it was given.
    Usage(String),
    /// Something on this machine failed.
    Local {
        /// What was being done.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// The data read is not the data expected.
    Mismatch(Mismatch),
    /// What also others that asked the same disk are told.
    Shared(Arc<Error>),
    /// Ctrl-C.
    Interrupted,
}

/// Where data differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The first byte that differs, from the start of the device.
    pub offset: u64,
    /// Sectors that differ.
    pub sectors: u64,
    /// What should be there, from that byte on.
    pub expected: Vec<u8>,
    /// What is there.
    pub found: Vec<u8>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sector(s) differ, the first at byte {}: expected {}, found {}",
            self.sectors,
            self.offset,
            Hex(&self.expected),
            Hex(&self.found)
        )
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl Error {
    /// A closure for `map_err` that says what was being done.
    pub fn local(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Local { what, source }
    }

    /// 1: data differs. 2: wrong usage. 3: no answer. 4: the server refused or its disk failed.
    /// 5: this machine failed. 130: interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Mismatch(_) => 1,
            Self::Usage(_) | Self::Target { .. } => 2,
            Self::NoAnswer { .. } | Self::StillBusy { .. } => 3,
            Self::Refused { .. }
            | Self::NoSession
            | Self::KeyNeeded
            | Self::Changed
            | Self::Forgotten { .. }
            | Self::Nonsense(_) => 4,
            Self::Local { .. } => 5,
            Self::Shared(error) => error.exit_code(),
            Self::Interrupted => 130,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target { target, why } => {
                write!(f, "\"{target}\" is no target: {why}. HOST:PORT is needed, as in 127.0.0.1:10809")
            }
            Self::NoAnswer { target, op, tries, waited, refused } => {
                write!(
                    f,
                    "no answer from {target} to {op}, asked {tries} times in {:.1} s",
                    waited.as_secs_f64()
                )?;
                if *refused {
                    f.write_str(" (its host says that nobody listens on that port)")?;
                }
                f.write_str(
                    ". Is the node up, and does `netblk list` in its shell show the port? \
                     On a slow or lossy network raise --retries",
                )
            }
            Self::StillBusy { waited } => write!(
                f,
                "the server has been busy for {:.1} s. Use a smaller --window, or wait for its other clients",
                waited.as_secs_f64()
            ),
            Self::Refused { op, offset, length, status } => {
                write!(f, "{op} of {length} bytes at {offset}: {status}. ")?;
                f.write_str(match status {
                    Status::IoError => "The node's disk failed; its log (`dmesg` in its shell) says how",
                    Status::ReadOnly => "The disk is served read-only; start it again without `ro`",
                    Status::Unsupported => "The node's disk cannot do that",
                    Status::OutOfRange => "The range ends behind the device; `netblk info` shows its size",
                    _ => "This client and the server disagree about the device; was it restarted with other options?",
                })
            }
            Self::NoSession => f.write_str(
                "the server will not have this client: its key is another (--key-file), it needs one for clients \
                 from here (`allow=` on the server), or it has as many clients as it takes",
            ),
            Self::KeyNeeded => f.write_str("the server wants a key: give it with --key-file"),
            Self::Changed => f.write_str("the server was restarted, and serves another device now"),
            Self::Forgotten { offset, length, status } => write!(
                f,
                "the server was restarted, and {length} bytes at {offset} that had been written cannot be written \
                 again: {status}. They may be lost"
            ),
            Self::Nonsense(error) => {
                write!(
                    f,
                    "the server describes an impossible device ({error}); is it a netblk server?"
                )
            }
            Self::Usage(text) => f.write_str(text),
            Self::Local { what, source } => write!(f, "{what}: {source}"),
            Self::Mismatch(mismatch) => mismatch.fmt(f),
            Self::Shared(error) => error.fmt(f),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Local { source, .. } => Some(source),
            Self::Nonsense(error) => Some(error),
            Self::Shared(error) => Some(error),
            _ => None,
        }
    }
}
