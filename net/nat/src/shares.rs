//! How many connections each guest has, so that one cannot have all (RFC 6888 REQ-4 asks it of
//! carriers for the same reason).

use alloc::vec::Vec;
use core::net::Ipv4Addr;

/// Guests with connections at once; as many as the switch has ports.
const MOST_HOLDERS: usize = 64;

#[derive(Debug)]
pub(crate) struct Shares {
    holders: Vec<(Ipv4Addr, u32)>,
    share: u32,
}

impl Shares {
    /// Shares of `share` connections each.
    pub fn new(share: u32) -> Self {
        Self { holders: Vec::with_capacity(MOST_HOLDERS), share }
    }

    /// Whether the guest may have one more.
    pub fn may_take(&self, guest: Ipv4Addr) -> bool {
        match self.holders.iter().find(|(holder, _)| *holder == guest) {
            Some(&(_, held)) => held < self.share,
            None => self.holders.len() < MOST_HOLDERS && self.share > 0,
        }
    }

    /// The guest has one more.
    pub fn take(&mut self, guest: Ipv4Addr) {
        match self.holders.iter_mut().find(|(holder, _)| *holder == guest) {
            Some((_, held)) => *held += 1,
            None => self.holders.push((guest, 1)),
        }
    }

    /// The guest has one less.
    pub fn give_back(&mut self, guest: Ipv4Addr) {
        if let Some(at) = self.holders.iter().position(|(holder, _)| *holder == guest) {
            let held = &mut self.holders[at].1;
            *held -= 1;
            if *held == 0 {
                self.holders.swap_remove(at);
            }
        }
    }

    pub fn clear(&mut self) {
        self.holders.clear();
    }
}
