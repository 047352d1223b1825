//! How many requests may be under way: what the user allows, less while the network loses.
//!
//! UDP brings no congestion control, and a client that repeats everything it loses at full speed
//! is what congestion collapse is made of (RFC 8085 section 3.1). So the user's window is a limit,
//! not a promise: a loss (or a busy server) halves the effective window, once per round trip, and
//! every answer gives a fraction of a request back.

/// The effective window.
#[derive(Debug, Clone)]
pub struct Window {
    limit: u32,
    /// In 1/65536 of a request, so that "one more per window of answers" needs no floating point.
    fixed: u64,
    quiet_until_ns: u64,
}

const ONE: u64 = 1 << 16;

impl Window {
    /// Starts at the limit: the user chose it.
    pub fn new(limit: u32) -> Self {
        let limit = limit.max(1);
        Self { limit, fixed: u64::from(limit) * ONE, quiet_until_ns: 0 }
    }

    /// Requests that may be under way now, at least one.
    pub fn allowed(&self) -> u32 {
        u32::try_from(self.fixed / ONE).map_or(self.limit, |whole| whole.clamp(1, self.limit))
    }

    /// A request was answered.
    pub fn answered(&mut self) {
        self.fixed = (self.fixed + ONE * ONE / self.fixed).min(u64::from(self.limit) * ONE);
    }

    /// A transmission got lost, or the server was busy. What was sent together is lost together:
    /// it counts once in `round_trip_ns`.
    pub fn lost(&mut self, now_ns: u64, round_trip_ns: u64) {
        if now_ns >= self.quiet_until_ns {
            self.fixed = (self.fixed / 2).max(ONE);
            self.quiet_until_ns = now_ns.saturating_add(round_trip_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_one_round_trip_halve_it_once_and_answers_open_it_again() {
        let mut window = Window::new(16);
        assert_eq!(window.allowed(), 16);
        window.lost(100, 50);
        window.lost(120, 50);
        assert_eq!(window.allowed(), 8);
        window.lost(150, 50);
        assert_eq!(window.allowed(), 4);
        for _ in 0..5 {
            window.answered();
        }
        assert_eq!(window.allowed(), 5);
        for _ in 0..200 {
            window.answered();
        }
        assert_eq!(window.allowed(), 16);
    }

    #[test]
    fn one_request_is_always_allowed() {
        let mut window = Window::new(0);
        for now_ns in 0..100 {
            window.lost(now_ns, 0);
        }
        assert_eq!(window.allowed(), 1);
    }
}
