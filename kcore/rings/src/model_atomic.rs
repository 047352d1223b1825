//! The atomics of the model check: loom's, with every load made visible to loom's search.
//!
//! loom (0.7.3) looks for races by remembering, per atomic, its last access and its last access
//! that was not a load. When a producer loads a sequence and then stores it, its own load is the
//! last access, and a consumer's load before that is forgotten: the store looks unopposed, and the
//! schedules in which the consumer comes later are never tried. (A first version of these tests
//! passed after ONE schedule, and passed with the release store made relaxed.)
//!
//! So a load first adds nothing to a counter beside the atomic. Read-modify-writes always oppose
//! each other in the search; being relaxed and on another location they order nothing in the
//! memory model, so they hide no missing acquire or release.

use loom::sync::atomic::{AtomicU32 as LoomU32, AtomicUsize as LoomUsize, Ordering};

macro_rules! visible {
    ($name:ident, $loom:ident, $value:ty) => {
        pub(crate) struct $name {
            value: $loom,
            loads: LoomUsize,
        }

        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self { value: $loom::new(value), loads: LoomUsize::new(0) }
            }

            pub(crate) fn load(&self, ordering: Ordering) -> $value {
                self.loads.fetch_add(0, Ordering::Relaxed);
                self.value.load(ordering)
            }

            pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                self.value.store(value, ordering);
            }

            /// Never fails without a reason: a spurious failure only retries, so it adds schedules
            /// and no behaviour.
            #[allow(dead_code, reason = "only positions are exchanged, not values")]
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.value.compare_exchange(current, new, success, failure)
            }
        }
    };
}

visible!(AtomicUsize, LoomUsize, usize);
visible!(AtomicU32, LoomU32, u32);
