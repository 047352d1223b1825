//! Datagrams that leave together.

use kcore::frame::{FrameChain, NetFrame};
use netwire::UdpHeaders;

/// A chain of UDP datagrams in which those are marked that a card may be given together with the one before
/// ([`NetFrame::join_previous`]): those with the same headers.
#[derive(Debug, Default)]
pub struct Answers {
    chain: FrameChain,
    /// The headers of the chain's last.
    last: Option<UdpHeaders>,
}

impl Answers {
    /// None yet.
    pub const fn new() -> Self {
        Self { chain: FrameChain::new(), last: None }
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.chain.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// Appends a datagram, which has these headers.
    pub fn push(&mut self, mut datagram: NetFrame, headers: &UdpHeaders) {
        datagram.join_previous(self.last.as_ref() == Some(headers));
        self.last = Some(*headers);
        self.chain.push(datagram);
    }

    /// The chain, for a card to take from its beginning what it has room for.
    pub fn chain(&mut self) -> &mut FrameChain {
        &mut self.chain
    }
}
