//! Ports of the uplink that are a guest's.

use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddrV4;

use netwire::Transport;

/// Forwards at once. They are searched one by one, for packets that open a connection only.
pub const MOST_FORWARDS: usize = 64;

/// What comes for `port` of the uplink goes to `inside`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forward {
    /// UDP or TCP.
    pub transport: Transport,
    pub port: u16,
    pub inside: SocketAddrV4,
}

/// Why there is no such forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForwardError {
    /// Only UDP and TCP have ports to forward, and 0 is none.
    NotAPort,
    /// The target is not one of the inside network's hosts, or is the node itself.
    NotInside(SocketAddrV4),
    /// The node itself uses the port.
    UsedByNode(u16),
    /// The port is forwarded already, or a guest's connections use it.
    InUse(u16),
    /// There are [`MOST_FORWARDS`].
    TooMany,
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPort => f.write_str("only TCP and UDP ports from 1 on can be forwarded"),
            Self::NotInside(target) => write!(f, "{target} is not a guest's address"),
            Self::UsedByNode(port) => write!(f, "the node itself uses port {port}"),
            Self::InUse(port) => write!(f, "port {port} is forwarded or in use already"),
            Self::TooMany => write!(f, "there are {MOST_FORWARDS} forwards already"),
        }
    }
}

impl core::error::Error for ForwardError {}

#[derive(Debug, Default)]
pub(crate) struct Forwards(Vec<Forward>);

impl Forwards {
    pub fn find(&self, transport: Transport, port: u16) -> Option<Forward> {
        self.0.iter().find(|forward| (forward.transport, forward.port) == (transport, port)).copied()
    }

    pub fn add(&mut self, forward: Forward) -> Result<(), ForwardError> {
        if self.find(forward.transport, forward.port).is_some() {
            return Err(ForwardError::InUse(forward.port));
        }
        if self.0.len() >= MOST_FORWARDS {
            return Err(ForwardError::TooMany);
        }
        self.0.push(forward);
        Ok(())
    }

    pub fn remove(&mut self, transport: Transport, port: u16) -> Option<Forward> {
        let at = self.0.iter().position(|forward| (forward.transport, forward.port) == (transport, port))?;
        Some(self.0.swap_remove(at))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Forward> {
        self.0.iter()
    }
}
