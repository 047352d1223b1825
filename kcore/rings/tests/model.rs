//! Every interleaving of small cases, checked by loom:
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p rings --release --test model
//!
//! An interrupt handler is, to the ring, a thread that runs from start to end while another stands
//! still in the middle of an operation: those schedules are among the ones explored.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use rings::{Full, Ring, Sleeper};

/// Two threads: every schedule.
fn every_schedule(model: impl Fn() + Sync + Send + 'static) {
    loom::model(model);
}

/// Three threads: every schedule with at most three preemptions (without the bound, hours; known
/// faults of such rings need two).
fn every_schedule_of_three(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn drain<const N: usize>(ring: &Ring<N>) -> Vec<u32> {
    std::iter::from_fn(|| ring.pop()).collect()
}

#[test]
fn two_producers_race_for_one_position() {
    every_schedule(|| {
        let ring = Arc::new(Ring::<2>::new());
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.push(1).unwrap())
        };
        ring.push(2).unwrap();
        other.join().unwrap();
        let mut values = drain(&ring);
        values.sort_unstable();
        assert_eq!(values, [1, 2]);
    });
}

#[test]
fn two_consumers_never_take_the_same_value() {
    every_schedule(|| {
        let ring = Arc::new(Ring::<2>::new());
        ring.push(1).unwrap();
        ring.push(2).unwrap();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.pop())
        };
        let mine = ring.pop();
        let mut values: Vec<u32> = [mine, other.join().unwrap()].into_iter().flatten().collect();
        values.extend(drain(&ring));
        values.sort_unstable();
        assert_eq!(values, [1, 2]);
    });
}

#[test]
fn exactly_the_capacity_fits_when_producers_race_at_the_limit() {
    every_schedule(|| {
        let ring = Arc::new(Ring::<2>::new());
        ring.push(0).unwrap();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.push(1))
        };
        let mine = ring.push(2);
        let theirs = other.join().unwrap();
        assert!(
            matches!((mine, theirs), (Ok(()), Err(Full(1))) | (Err(Full(2)), Ok(()))),
            "one of the two must be refused: {mine:?} {theirs:?}"
        );
        assert_eq!(drain(&ring).len(), 2);
    });
}

#[test]
fn a_consumer_sees_a_racing_producer_in_order_and_across_the_wrap() {
    every_schedule(|| {
        let ring = Arc::new(Ring::<2>::new());
        let producer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut next = 0;
                // Three values through two cells: the third only fits after a pop.
                for _ in 0..4 {
                    if next < 3 && ring.push(next + 7).is_ok() {
                        next += 1;
                    }
                }
                next
            })
        };
        let mut seen: Vec<u32> = (0..2).filter_map(|_| ring.pop()).collect();
        let pushed = producer.join().unwrap();
        seen.extend(drain(&ring));
        assert_eq!(seen, (7..pushed + 7).collect::<Vec<_>>());
    });
}

#[test]
fn two_producers_and_a_consumer() {
    every_schedule_of_three(|| {
        let ring = Arc::new(Ring::<2>::new());
        let producers: Vec<_> = (1..=2)
            .map(|value| {
                let ring = ring.clone();
                thread::spawn(move || ring.push(value).unwrap())
            })
            .collect();
        let mut seen: Vec<u32> = (0..2).filter_map(|_| ring.pop()).collect();
        for producer in producers {
            producer.join().unwrap();
        }
        seen.extend(drain(&ring));
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
    });
}

/// The life of a block server's slot numbers: out of the free ring on one CPU, through the request
/// ring, back into the free ring on another. One consumer each, as many cells as numbers: no push
/// may be refused, and no number may be lost or doubled.
#[test]
fn numbers_that_circulate_with_one_consumer_are_never_refused() {
    every_schedule(|| {
        let free = Arc::new(Ring::<2>::holding_every_number());
        let requests = Arc::new(Ring::<2>::new());
        let receiver = {
            let (free, requests) = (free.clone(), requests.clone());
            thread::spawn(move || {
                for _ in 0..3 {
                    if let Some(number) = free.pop() {
                        requests.push(number).expect("the request ring has room for all");
                    }
                }
            })
        };
        for _ in 0..2 {
            if let Some(number) = requests.pop() {
                free.push(number).expect("the free ring has room for all");
            }
        }
        receiver.join().unwrap();
        let mut numbers = drain(&free);
        numbers.extend(drain(&requests));
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1]);
    });
}

/// Push, then signal: whoever sleeps only when the ring looked empty AND no signal was latched has
/// nothing left to do, even if a stopped producer hid another's value for a while.
#[test]
fn push_then_signal_loses_no_wake_up() {
    every_schedule_of_three(|| {
        let ring = Arc::new(Ring::<2>::new());
        let signalled = Arc::new(AtomicBool::new(false));
        let producers: Vec<_> = (1..=2)
            .map(|value| {
                let (ring, signalled) = (ring.clone(), signalled.clone());
                thread::spawn(move || {
                    ring.push(value).unwrap();
                    // A read-modify-write, not a store: the worker may read the second producer's
                    // signal only, and must then see the first one's push too. A swap continues the
                    // first one's release sequence; with a plain store loom finds the lost wake-up.
                    signalled.swap(true, Ordering::AcqRel);
                })
            })
            .collect();
        // The worker: take what is there; sleep (here: stop) only on "empty and not signalled".
        let mut seen = 0;
        loop {
            while ring.pop().is_some() {
                seen += 1;
            }
            if !signalled.swap(false, Ordering::AcqRel) {
                break;
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
        let left = drain(&ring).len();
        assert_eq!(seen + left, 2);
        assert!(
            left == 0 || signalled.load(Ordering::Acquire),
            "asleep with {left} values in the ring and no signal"
        );
    });
}

/// With a second consumer stopped in mid-pop, the ring may answer `Full` below its capacity; the
/// value comes back and the ring recovers.
#[test]
fn a_stopped_second_consumer_may_refuse_a_push_but_loses_nothing() {
    // Outside the model: counts over all interleavings.
    static REFUSED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    every_schedule(|| {
        let ring = Arc::new(Ring::<2>::holding_every_number());
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.pop())
        };
        let mut hand: Vec<u32> = Vec::new();
        if let Some(number) = ring.pop()
            && let Err(Full(number)) = ring.push(number)
        {
            REFUSED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            hand.push(number);
        }
        hand.extend(other.join().unwrap());
        for number in hand {
            ring.push(number).expect("nobody is in the middle of anything now");
        }
        let mut numbers = drain(&ring);
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1]);
    });
    assert_ne!(
        REFUSED.load(std::sync::atomic::Ordering::Relaxed),
        0,
        "the documented refusal was not among the interleavings"
    );
}

/// A consumer that takes `count` values and sleeps in between: as the worker of a server does.
fn takes_all(ring: &Ring<2>, sleeper: &Sleeper, alarm: &Alarm, count: usize) {
    let mut taken = 0;
    while taken < count {
        if ring.pop().is_some() {
            taken += 1;
            continue;
        }
        sleeper.lie_down();
        if !ring.has_next() {
            alarm.wait();
        }
        sleeper.get_up();
    }
}

/// A latched event; a wait that nobody ends is a deadlock, which loom reports.
struct Alarm {
    raised: loom::sync::Mutex<bool>,
    heard: loom::sync::Condvar,
}

impl Alarm {
    fn new() -> Self {
        Self { raised: loom::sync::Mutex::new(false), heard: loom::sync::Condvar::new() }
    }

    fn raise(&self) {
        *self.raised.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn wait(&self) {
        let mut raised = self.raised.lock().unwrap();
        while !*raised {
            raised = self.heard.wait(raised).unwrap();
        }
        *raised = false;
    }
}

#[test]
fn no_wake_up_is_missed() {
    every_schedule_of_three(|| {
        let (ring, sleeper, alarm) =
            (Arc::new(Ring::<2>::new()), Arc::new(Sleeper::new()), Arc::new(Alarm::new()));
        let producers: Vec<_> = (1..=2)
            .map(|value| {
                let (ring, sleeper, alarm) = (ring.clone(), sleeper.clone(), alarm.clone());
                thread::spawn(move || {
                    ring.push(value).unwrap();
                    if sleeper.rouse() {
                        alarm.raise();
                    }
                })
            })
            .collect();
        takes_all(&ring, &sleeper, &alarm, 2);
        for producer in producers {
            producer.join().unwrap();
        }
    });
}
