use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// The other end: fetches what was announced, completes in any order, and lies when told to.
struct FakeController {
    queue: u16,
    entries: u16,
    head: u16,
    tail: u16,
    phase: bool,
    place: u16,
    fetched: VecDeque<u16>,
    ring: BTreeMap<u16, u16>,
}

impl FakeController {
    fn new(queue: u16, entries: u16) -> Self {
        let (ring, fetched) = (BTreeMap::new(), VecDeque::new());
        Self { queue, entries, head: 0, tail: 0, phase: true, place: 0, fetched, ring }
    }

    fn doorbell(&mut self, tail: u16) {
        assert!(tail < self.entries);
        self.tail = tail;
    }

    fn fetch(&mut self) {
        while self.head != self.tail {
            self.fetched.push_back(self.ring.remove(&self.head).expect("an entry was written"));
            self.head = (self.head + 1) % self.entries;
        }
    }

    fn completion(&self, identifier: u16) -> [u32; 4] {
        let last = u32::from(identifier) | u32::from(self.phase) << 16;
        [0, 0, u32::from(self.head) | u32::from(self.queue) << 16, last]
    }

    fn complete(&mut self, pick: usize) -> Option<(u16, [u32; 4])> {
        let pick = pick % self.fetched.len().max(1);
        let identifier = self.fetched.remove(pick)?;
        let dwords = self.completion(identifier);
        self.place = (self.place + 1) % self.entries;
        self.phase ^= self.place == 0;
        Some((identifier, dwords))
    }
}

fn pair(entries: u16) -> (QueuePair<u32>, FakeController) {
    (QueuePair::new(3, entries, 2).unwrap(), FakeController::new(3, entries))
}

fn submit(pair: &mut QueuePair<u32>, controller: &mut FakeController, payload: u32) -> Submission {
    let submission = pair.submit(Class::Synchronous, payload, 0).unwrap();
    controller.ring.insert(submission.place, submission.identifier);
    submission
}

#[test]
fn one_doorbell_announces_a_batch_and_one_acknowledges_it() {
    let (mut pair, mut controller) = pair(8);
    assert_eq!(pair.announce_tail(), None);
    for payload in 0..5 {
        submit(&mut pair, &mut controller, payload);
    }
    controller.doorbell(pair.announce_tail().unwrap());
    assert_eq!(pair.announce_tail(), None);
    controller.fetch();
    for payload in 0..5 {
        let (_, dwords) = controller.complete(0).unwrap();
        assert!(pair.is_new(dwords[3]));
        assert_eq!(pair.accept(dwords).unwrap().payload, payload);
    }
    assert_eq!(pair.announce_completion_head(), Some(5));
    assert_eq!(pair.announce_completion_head(), None);
    assert_eq!(pair.outstanding(), 0);
}

#[test]
fn the_phase_turns_with_every_round() {
    let (mut pair, mut controller) = pair(4);
    for payload in 0..50 {
        submit(&mut pair, &mut controller, payload);
        controller.doorbell(pair.announce_tail().unwrap());
        controller.fetch();
        let (_, dwords) = controller.complete(0).unwrap();
        assert!(pair.is_new(dwords[3]));
        assert_eq!(pair.accept(dwords).unwrap().payload, payload);
        assert!(!pair.is_new(if pair.completion_place() == 0 { dwords[3] } else { dwords[3] ^ 1 << 16 }));
    }
}

/// One command outstanding; what the controller says about it is `change`d.
fn lie(change: impl FnOnce(&mut [u32; 4])) -> Violation {
    let (mut pair, mut controller) = pair(8);
    submit(&mut pair, &mut controller, 7);
    controller.doorbell(pair.announce_tail().unwrap());
    controller.fetch();
    let (_, honest) = controller.complete(0).unwrap();
    let mut dwords = honest;
    change(&mut dwords);
    let violation = pair.accept(dwords).unwrap_err();
    assert!(!pair.is_new(honest[3]), "a pair that was lied to takes nothing more");
    assert_eq!(pair.take_any(), Some(7), "the command is still the driver's to end");
    violation
}

#[test]
fn every_lie_is_told_by_its_name() {
    assert_eq!(lie(|dwords| dwords[3] |= 7), Violation::UnknownIdentifier { identifier: 7 });
    assert_eq!(lie(|dwords| dwords[3] ^= 1), Violation::StaleIdentifier { identifier: 3 });
    assert_eq!(lie(|dwords| dwords[3] |= 0x100), Violation::StaleIdentifier { identifier: 0x102 });
    assert_eq!(lie(|dwords| dwords[2] ^= 1 << 16), Violation::WrongQueue { queue: 2 });
    assert_eq!(lie(|dwords| dwords[2] += 1), Violation::WrongHead { head: 2 });
    assert_eq!(lie(|dwords| dwords[2] |= 0xffff), Violation::WrongHead { head: 0xffff });
    assert_eq!(lie(|dwords| dwords[3] ^= 1 << 16), Violation::UnstableEntry);
}

#[test]
fn a_completion_before_the_doorbell_is_a_lie() {
    let (mut pair, mut controller) = pair(8);
    let submission = submit(&mut pair, &mut controller, 7);
    controller.head = 1;
    let early = controller.completion(submission.identifier);
    assert_eq!(pair.accept(early), Err(Violation::WrongHead { head: 1 }));
}

#[test]
fn after_a_restart_old_completions_are_stale() {
    let (mut pair, mut controller) = pair(8);
    let submission = submit(&mut pair, &mut controller, 7);
    let late = controller.completion(submission.identifier);
    assert_eq!(pair.take_any(), Some(7));
    pair.restart();
    let identifier = submission.identifier;
    assert_eq!(pair.accept(late), Err(Violation::StaleIdentifier { identifier }));
    pair.restart();
    let mut controller = FakeController::new(3, 8);
    submit(&mut pair, &mut controller, 8);
    controller.doorbell(pair.announce_tail().unwrap());
    controller.fetch();
    let (_, dwords) = controller.complete(0).unwrap();
    assert_eq!(pair.accept(dwords).unwrap().payload, 8);
}

#[derive(Clone, Debug)]
enum Step {
    Submit(bool),
    Kick,
    Complete(usize),
    Lie([u32; 4]),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<bool>().prop_map(Step::Submit),
        3 => Just(Step::Kick),
        6 => any::<usize>().prop_map(Step::Complete),
        1 => any::<[u32; 4]>().prop_map(Step::Lie),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever a controller completes: every command ends once, an entry is never overwritten
    /// before it was fetched (the fake would miss it), and honest completions are all accepted.
    #[test]
    fn every_command_ends_exactly_once(
        entries in 2_u16..12, steps in proptest::collection::vec(step(), 0..300),
    ) {
        let (mut pair, mut controller) = pair(entries);
        let mut outstanding = BTreeMap::new();
        let mut ended = Vec::new();
        let mut next = 0_u32;
        for step in steps {
            match step {
                Step::Submit(synchronous) => {
                    let class = if synchronous { Class::Synchronous } else { Class::Asynchronous };
                    match pair.submit(class, next, 0) {
                        Ok(submission) => {
                            prop_assert!(submission.place < entries && submission.index < entries - 1);
                            let old = controller.ring.insert(submission.place, submission.identifier);
                            prop_assert_eq!(old, None, "an entry was overwritten");
                            prop_assert_eq!(outstanding.insert(submission.identifier, next), None);
                            next += 1;
                        }
                        Err(Full(payload)) => prop_assert_eq!(payload, next),
                    }
                }
                Step::Kick => {
                    if let Some(tail) = pair.announce_tail() {
                        controller.doorbell(tail);
                    }
                    controller.fetch();
                }
                Step::Complete(pick) => {
                    let Some((identifier, dwords)) = controller.complete(pick) else { continue };
                    prop_assert!(pair.is_new(dwords[3]));
                    let accepted = pair.accept(dwords).unwrap();
                    prop_assert_eq!(Some(accepted.payload), outstanding.remove(&identifier));
                    ended.push(accepted.payload);
                }
                Step::Lie(dwords) => {
                    if let Ok(accepted) = pair.accept(dwords) {
                        // By chance a completion that an honest controller could have sent.
                        let identifier = dwords[3] as u16;
                        prop_assert_eq!(Some(accepted.payload), outstanding.remove(&identifier));
                        ended.push(accepted.payload);
                    }
                    restart(&mut pair, &mut controller, &mut outstanding, &mut ended);
                }
                Step::Restart => restart(&mut pair, &mut controller, &mut outstanding, &mut ended),
            }
            prop_assert_eq!(usize::from(pair.outstanding()), outstanding.len());
        }
        restart(&mut pair, &mut controller, &mut outstanding, &mut ended);
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..next).collect::<Vec<_>>());
    }
}

fn restart(
    pair: &mut QueuePair<u32>,
    controller: &mut FakeController,
    outstanding: &mut BTreeMap<u16, u32>,
    ended: &mut Vec<u32>,
) {
    ended.extend(core::iter::from_fn(|| pair.take_any()));
    outstanding.clear();
    pair.restart();
    *controller = FakeController::new(controller.queue, controller.entries);
}
