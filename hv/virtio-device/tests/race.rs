//! Suppression with two threads: the driver sleeps until it is interrupted, the device until it
//! is notified. If either fence were missing, one of the waits would never end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use virtio_device::chain::Chain;
use virtio_device::fake::VecRam;
use virtio_device::fake::driver::{Buffer, DriverQueue};
use virtio_device::queue::Virtqueue;
use virtio_device::{Features, GuestRam};

const CHAINS: u32 = 100_000;
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn neither_side_sleeps_over_work() {
    for features in [Features::NONE, Features::EVENT_IDX] {
        race(features);
    }
}

fn race(features: Features) {
    let ram = VecRam::new(0x4000);
    let mut driver = DriverQueue::at(0.into(), 4, features.has(Features::EVENT_IDX));
    let mut queue = Virtqueue::new(driver.setup(), 4, features, &ram).unwrap();
    let (interrupt, interrupted) = channel();
    let (notify, notified) = channel();
    let finished = AtomicBool::new(false);

    std::thread::scope(|scope| {
        let (ram, finished) = (&ram, &finished);
        scope.spawn(move || {
            let mut chain = Chain::with_room_for(4);
            loop {
                queue.suppress_notify(ram).unwrap();
                while queue.pop(ram, &mut chain).unwrap() {
                    queue.add_used(ram, chain.head(), 0).unwrap();
                    queue.publish_used(ram).unwrap();
                    if queue.driver_wants_interrupt(ram).unwrap() {
                        let _ = interrupt.send(());
                    }
                    queue.settle_interrupt();
                }
                if queue.request_notify(ram).unwrap() {
                    continue;
                }
                match notified.recv_timeout(PATIENCE) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        assert!(finished.load(Ordering::SeqCst), "the device was not notified");
                        return;
                    }
                }
            }
        });

        let buffer = Buffer { address: 0x2000.into(), bytes: 4, writable: false };
        let (mut offered, mut used) = (0, 0);
        while used < CHAINS {
            driver.refuse_interrupts(ram);
            while offered < CHAINS && driver.offer(ram, &[buffer]).is_some() {
                offered += 1;
                if driver.must_notify(ram, 1) {
                    notify.send(()).unwrap();
                }
            }
            while driver.take_used(ram).is_some() {
                used += 1;
            }
            if used < CHAINS && driver.free_descriptors() == 0 && !driver.ask_for_interrupt(ram) {
                interrupted.recv_timeout(PATIENCE).expect("the driver was not interrupted");
            }
            ram.fence();
        }
        finished.store(true, Ordering::SeqCst);
        drop(notify);
    });
}
