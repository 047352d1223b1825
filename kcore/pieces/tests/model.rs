//! Shares of a page in every interleaving of two holders, under the C11 memory model. Run by
//! `cargo xtask test loom`.
#![cfg(loom)]

use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use pieces::Shares;

/// A page's holders, and what each of them has done with the page: marks that nothing but the
/// count orders.
struct Page {
    shares: Shares,
    done: [AtomicU32; 2],
}

fn shared_by_two() -> Arc<Page> {
    let shares = Shares::new(1).unwrap();
    shares.first(0);
    shares.share(0);
    Arc::new(Page { shares, done: [AtomicU32::new(0), AtomicU32::new(0)] })
}

impl Page {
    /// Holder `number` uses the page and leaves. Whether it was the last.
    fn use_and_leave(&self, number: usize) -> bool {
        self.done[number].store(1, Relaxed);
        let last = self.shares.leave(0);
        if last {
            assert_eq!(self.done[1 - number].load(Relaxed), 1, "the other is done before the page is free");
        }
        last
    }
}

#[test]
fn one_is_the_last_and_knows_what_the_other_did() {
    loom::model(|| {
        let page = shared_by_two();
        let other = {
            let page = page.clone();
            thread::spawn(move || page.use_and_leave(1))
        };
        let here = page.use_and_leave(0);
        assert!(here != other.join().unwrap(), "one and only one frees the page");
    });
}

#[test]
fn a_sole_holder_may_write_for_the_other_is_done() {
    loom::model(|| {
        let page = shared_by_two();
        let other = {
            let page = page.clone();
            thread::spawn(move || page.use_and_leave(1))
        };
        if page.shares.is_sole(0) {
            assert_eq!(page.done[1].load(Relaxed), 1);
        }
        page.done[0].store(1, Relaxed);
        let _ = page.shares.leave(0);
        other.join().unwrap();
    });
}
