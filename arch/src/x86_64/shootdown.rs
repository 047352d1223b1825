//! Making every CPU forget translations.
//!
//! One request at a time: the initiator publishes a range, marks every other CPU as owing an
//! answer, interrupts them, and waits until none owes one. An answer is INVLPG for each page
//! (AMD APM vol. 2 section 5.5.2), after which the CPU cannot reach the old frames.
//!
//! A CPU may be in here, waiting for its turn, with interrupts off, while it owes an answer to
//! the CPU whose turn it is; so whoever waits for the lock (this one and that of the page tables)
//! answers meanwhile. Two rules remain for callers: do not hold a lock that another CPU may be
//! waiting for with interrupts off, and do not call from an interrupt handler.

use super::addr::{PAGE_BYTES, VirtAddr};
use super::sync::IrqLock;
use super::traps::VECTOR_TLB_SHOOTDOWN;
use super::{apic, cpu};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use x86_64::instructions::tlb;

static TURN: IrqLock<()> = IrqLock::new(());
static START: AtomicU64 = AtomicU64::new(0);
static PAGES: AtomicUsize = AtomicUsize::new(0);
static OWES: [AtomicBool; cpu::MAX_CPUS] = [const { AtomicBool::new(false) }; cpu::MAX_CPUS];

/// Makes every CPU forget `pages` pages from `start` on. Returns when all have.
pub(super) fn forget(start: VirtAddr, pages: usize) {
    let _turn = TURN.lock_with(answer);
    let me = cpu::index();
    START.store(start.as_u64(), Ordering::Relaxed);
    PAGES.store(pages, Ordering::Relaxed);
    for (other, owes) in OWES.iter().enumerate() {
        if other != me && cpu::is_online(other) {
            // Release: whoever sees that it owes an answer sees the range.
            owes.store(true, Ordering::Release);
            apic::send_ipi(other, VECTOR_TLB_SHOOTDOWN);
        }
    }
    flush_here();
    for (other, owes) in OWES.iter().enumerate() {
        // A CPU that stops for good while it is waited for answers by stopping.
        while owes.load(Ordering::Acquire) && cpu::is_online(other) {
            cpu::pause();
        }
        owes.store(false, Ordering::Relaxed);
    }
}

/// Gives this CPU's answer, if it owes one.
pub(super) fn answer() {
    let Some(owes) = OWES.get(cpu::index()) else { return };
    if owes.load(Ordering::Acquire) {
        flush_here();
        owes.store(false, Ordering::Release);
    }
}

fn flush_here() {
    let start = START.load(Ordering::Relaxed);
    for page in 0..PAGES.load(Ordering::Relaxed) as u64 {
        tlb::flush(x86_64::VirtAddr::new(start + page * PAGE_BYTES));
    }
}
