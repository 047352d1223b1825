//! How many requests may be under way: what the user allows, less while the network loses.
//!
//! UDP brings no congestion control, and a client that repeats everything it loses at full speed
//! is what congestion collapse is made of (RFC 8085 section 3.1). So the user's window is a limit,
//! not a promise, and below it this is TCP's classic way (RFC 5681), which shares a link fairly with
//! TCP and with itself:
//!
//! - it begins with [`FIRST`] requests and doubles in a round trip, up to a threshold (slow start);
//! - above the threshold, a round trip adds one request;
//! - a loss, or a server that is busy, halves it, and that is the new threshold. What was sent before the window
//!   was halved is of the same congestion and counts no more (RFC 6582 section 3.2: the recovery point);
//! - when the answer comes after all, nothing was lost, and it is as before (RFC 4015; each transmission has a cookie of
//!   its own, so it is known which one was answered);
//! - when a repetition gets lost too and nothing at all came in between, one request is left (RFC 9002
//!   section 7.6, persistent congestion). One lost datagram never does that: the others are answered.
//!
//! It grows only while it is used (RFC 7661 section 4.3): what was never under way proves nothing.
//!
//! **Not taken:** the round trip as a sign of congestion (Vegas, BBR). A request's time is the disk's and the server's
//! queue; at a window of 64 most of it is waiting for one's own requests, and a window that shrank for that would only
//! be slower.

#[cfg(test)]
mod tests;

/// The effective window.
#[derive(Debug, Clone)]
pub struct Window {
    limit: u32,
    /// In 1/65536 of a request, so that "one more per window of answers" needs no floating point.
    fixed: u64,
    /// Up to here it doubles; in the same unit.
    threshold: u64,
    /// When it was last made smaller.
    reduced_ns: Option<u64>,
    /// The transmission that it was made smaller for, and what it was before, with its threshold.
    before: Option<(u64, u64, u64)>,
}

const ONE: u64 = 1 << 16;

/// Requests before anything is known of the network; RFC 6928 has ten segments of up to 1,460 bytes.
const FIRST: u32 = 16;

impl Window {
    /// Begins.
    pub fn new(limit: u32) -> Self {
        let limit = limit.max(1);
        let fixed = u64::from(limit.min(FIRST)) * ONE;
        Self { limit, fixed, threshold: u64::from(limit) * ONE, reduced_ns: None, before: None }
    }

    /// Requests that may be under way now, at least one.
    pub fn allowed(&self) -> u32 {
        u32::try_from(self.fixed / ONE).map_or(self.limit, |whole| whole.clamp(1, self.limit))
    }

    /// One of `under_way` requests was answered.
    pub fn answered(&mut self, under_way: u32) {
        // Half: several answers are often taken before new requests leave.
        if under_way.saturating_mul(2) < self.allowed() {
            return;
        }
        let more = if self.fixed < self.threshold { ONE } else { ONE * ONE / self.fixed };
        self.fixed = (self.fixed + more).min(u64::from(self.limit) * ONE);
    }

    /// The transmission of `sent_ns` got lost, or the server was busy for it.
    pub fn lost(&mut self, now_ns: u64, sent_ns: u64) {
        if self.reduced_ns.is_none_or(|reduced_ns| sent_ns >= reduced_ns) {
            self.before = Some((sent_ns, self.fixed, self.threshold));
            self.fixed = (self.fixed / 2).max(ONE);
            self.threshold = self.fixed;
            self.reduced_ns = Some(now_ns);
        }
    }

    /// The transmission of `sent_ns` was answered after its time was up: it was slow, and not lost.
    pub fn late(&mut self, sent_ns: u64) {
        if let Some((_, fixed, threshold)) = self.before.take_if(|before| before.0 == sent_ns) {
            self.fixed = self.fixed.max(fixed);
            self.threshold = self.threshold.max(threshold);
        }
    }

    /// Nothing comes through any more.
    pub fn silent(&mut self, now_ns: u64) {
        // The first loss of this silence has halved it already; those at one request say nothing more.
        if self.fixed > ONE {
            self.threshold = self.threshold.min(self.fixed);
        }
        self.fixed = ONE;
        self.reduced_ns = Some(now_ns);
    }
}
