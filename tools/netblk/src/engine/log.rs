//! What was answered but not yet made durable, to be written again if the server forgot it.
//!
//! A server that was restarted has another epoch, and perhaps there was a power cut: what was answered
//! but neither flushed may be gone from the disk's cache. The user was told that it is written. So each
//! change is kept until a FLUSH that was sent after its answer has been answered itself (compare the
//! write verifier of NFSv3, RFC 1813 section 3.3.7). Changes with FUA are kept as well: they are
//! durable, but an older one under them that is written again would cover them.

use std::collections::VecDeque;

use super::flight::Request;

/// Bookkeeping for a change without data.
const ENTRY_BYTES: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Request>,
    /// How many entries were ever forgotten: the mark of the first that is kept.
    forgotten: u64,
    bytes: usize,
}

impl Log {
    /// A change was answered.
    pub fn push(&mut self, change: Request) {
        self.bytes += ENTRY_BYTES + change.data().len();
        self.entries.push_back(change);
    }

    /// A mark behind everything that is in the log now.
    pub fn mark(&self) -> u64 {
        self.forgotten + self.entries.len() as u64
    }

    /// Everything in front of the mark is durable.
    pub fn forget(&mut self, mark: u64) {
        while self.forgotten < mark
            && let Some(entry) = self.entries.pop_front()
        {
            self.forgotten += 1;
            self.bytes -= ENTRY_BYTES + entry.data().len();
        }
    }

    /// Memory that the log takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether everything is durable.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The mark of the oldest change that is kept.
    pub fn first(&self) -> u64 {
        self.forgotten
    }

    /// The change at a mark.
    pub fn get(&self, mark: u64) -> Option<&Request> {
        self.entries.get(usize::try_from(mark.checked_sub(self.forgotten)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_forgets_what_was_there_when_it_was_sent() {
        let mut log = Log::default();
        log.push(Request::write(0, vec![1; 512]));
        log.push(Request::Discard { offset: 512, length: 512 });
        let mark = log.mark();
        log.push(Request::write(1024, vec![2; 512]));
        log.forget(mark);
        assert_eq!(log.get(mark), Some(&Request::write(1024, vec![2; 512])));
        assert_eq!(log.bytes(), ENTRY_BYTES + 512);
        assert_eq!((log.first(), log.get(0)), (mark, None));
        // A mark that is older than what was forgotten since means nothing any more.
        log.forget(mark);
        assert!(!log.is_empty());
        log.forget(log.mark());
        assert!(log.is_empty() && log.bytes() == 0);
    }
}
