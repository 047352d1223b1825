//! When to look after a silent disk, and when to give up on it.
//!
//! A disk that stops answering raises no interrupt, so somebody must wake and look; but a
//! timer for every command would cost more than the command. The oldest outstanding command
//! decides for all: the driver's guard task sleeps until that one is due and asks [`judge`].

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// A command older than this makes the driver look at the controller's status register: a fatal
/// error or an empty slot need not wait for the deadline.
pub const SUSPECT_NS: u64 = 1_000_000_000;
/// A command older than this has failed. Disks that hold a command for seconds while they tidy up
/// exist; ten seconds are what netblk's clients and a person at the shell can still bear.
pub const COMMAND_DEADLINE_NS: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is outstanding: sleep until told otherwise.
    Idle,
    /// Nothing is wrong yet: look again then.
    LookAt { ns: u64 },
    /// Read the status register; if it shows nothing, look again then.
    Suspect { look_again_ns: u64 },
    /// The deadline of the oldest command has passed.
    Expired,
}

/// When to look for the first time after a command was submitted to an idle controller.
#[must_use]
pub fn first_look_ns(submitted_ns: u64) -> u64 {
    submitted_ns.saturating_add(SUSPECT_NS)
}

/// `oldest_ns` is when the oldest outstanding command was submitted.
#[must_use]
pub fn judge(now_ns: u64, oldest_ns: Option<u64>) -> Verdict {
    let Some(oldest_ns) = oldest_ns else { return Verdict::Idle };
    let age_ns = now_ns.saturating_sub(oldest_ns);
    let deadline_ns = oldest_ns.saturating_add(COMMAND_DEADLINE_NS);
    if age_ns >= COMMAND_DEADLINE_NS {
        Verdict::Expired
    } else if age_ns >= SUSPECT_NS {
        Verdict::Suspect { look_again_ns: now_ns.saturating_add(SUSPECT_NS).min(deadline_ns) }
    } else {
        Verdict::LookAt { ns: first_look_ns(oldest_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_stages_of_a_silent_command() {
        let born = 5_000_000_000;
        assert_eq!(judge(born, None), Verdict::Idle);
        assert_eq!(judge(born + 1, Some(born)), Verdict::LookAt { ns: born + SUSPECT_NS });
        let now = born + SUSPECT_NS;
        assert_eq!(judge(now, Some(born)), Verdict::Suspect { look_again_ns: now + SUSPECT_NS });
        let now = born + COMMAND_DEADLINE_NS - 1;
        assert_eq!(judge(now, Some(born)), Verdict::Suspect { look_again_ns: now + 1 });
        assert_eq!(judge(now + 1, Some(born)), Verdict::Expired);
    }

    proptest! {
        /// Every answer moves time forward, so a guard that obeys never spins, and never sleeps
        /// past the deadline.
        #[test]
        fn a_guard_that_obeys_wakes_later_and_in_time(now_ns: u64, oldest_ns: u64) {
            match judge(now_ns, Some(oldest_ns)) {
                Verdict::Idle => prop_assert!(false),
                Verdict::LookAt { ns } | Verdict::Suspect { look_again_ns: ns } => {
                    prop_assert!(ns > now_ns || ns == u64::MAX);
                    prop_assert!(ns <= oldest_ns.saturating_add(COMMAND_DEADLINE_NS));
                }
                Verdict::Expired => prop_assert!(now_ns - oldest_ns >= COMMAND_DEADLINE_NS),
            }
        }
    }
}
