use super::{
    BTreeSet, Config, Engine, Event, Failure, HashMap, Landed, NONCE_BYTES, PreSharedKey, Protocol, Refusal,
    Request, VecDeque, v2,
};
use netblk_proto::{HeaderView, Op, ReplyHeader, Status};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn engine(window: u32) -> Engine {
    Engine::new(Config {
        window,
        datagrams: 256,
        datagram_bytes: 1024,
        sector_bytes: 512,
        max_tries: 4,
        patience_ns: 3_600_000 * MS,
        busy_patience_ns: 1_000 * MS,
        first_cookie: 1000,
        protocol: Protocol::One,
        key: PreSharedKey::NONE,
        log_bytes: 1 << 20,
        nonces: Box::new(|| [0; NONCE_BYTES]),
    })
}

/// What the engine wants to send at `now_ns`: (op, cookie, offset, length).
fn sent(engine: &mut Engine, now_ns: u64) -> Vec<(u8, u64, u64, u32)> {
    let mut datagram = Vec::new();
    let mut all = Vec::new();
    while engine.next_datagram(now_ns, &mut datagram) {
        let view = HeaderView::new(&datagram).unwrap();
        all.push((view.op(), view.cookie(), view.offset(), view.length()));
    }
    all
}

fn reply(op: Op, cookie: u64, offset: u64, length: u32, status: Status) -> Vec<u8> {
    let mut datagram = ReplyHeader::new(op, cookie, offset, length, status).to_bytes().to_vec();
    if op == Op::Read && status == Status::Ok {
        datagram.resize(datagram.len() + length as usize, 0xAB);
    }
    datagram
}

/// Delivers a datagram: the pieces of data it brought and what landed.
fn deliver(engine: &mut Engine, now_ns: u64, datagram: &[u8]) -> Result<(Vec<u64>, Option<Landed>), End> {
    let (mut pieces, mut landed) = (Vec::new(), None);
    engine.receive(now_ns, datagram, &mut |event| {
        match event {
            Event::Data { offset, .. } => pieces.push(offset),
            Event::Landed(landing) => landed = Some(landing),
            Event::Info(_) => {}
            Event::Refused(refusal) => return Err(End::Refused(refusal)),
        }
        Ok::<(), End>(())
    })?;
    Ok((pieces, landed))
}

/// What ends a delivery early.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Failed(Failure),
    Refused(Refusal),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

#[test]
fn a_read_lands_when_all_its_pieces_have_come_in_any_order() {
    let mut engine = engine(1);
    let id = engine.start(Request::Read { offset: 4096, length: 2560 });
    assert_eq!(sent(&mut engine, 0), [(2, 1000, 4096, 2560)]);
    let answer = |offset, length| reply(Op::Read, 1000, offset, length, Status::Ok);
    assert_eq!(deliver(&mut engine, MS, &answer(6144, 512)), Ok((vec![6144], None)));
    assert_eq!(deliver(&mut engine, MS, &answer(4096, 1024)), Ok((vec![4096], None)));
    // The same again is nothing new.
    assert_eq!(deliver(&mut engine, MS, &answer(4096, 1024)), Ok((vec![], None)));
    let (pieces, landed) = deliver(&mut engine, 3 * MS, &answer(5120, 1024)).unwrap();
    assert_eq!(pieces, [5120]);
    let expected = Landed { id, op: v2::Op::Read, offset: 4096, length: 2560, latency_ns: 3 * MS };
    assert_eq!(landed, Some(expected));
    assert!(engine.is_idle() && engine.deadline_ns().is_none());
    assert_eq!(engine.stats().ignored, 1);
}

#[test]
fn only_what_is_missing_is_asked_again() {
    let mut engine = engine(1);
    engine.start(Request::Read { offset: 0, length: 8192 });
    sent(&mut engine, 0);
    for piece in [0, 1, 3, 7] {
        deliver(&mut engine, MS, &reply(Op::Read, 1000, piece * 1024, 1024, Status::Ok)).unwrap();
    }
    let deadline_ns = engine.deadline_ns().unwrap();
    engine.on_time(deadline_ns - 1).unwrap();
    assert_eq!(sent(&mut engine, deadline_ns - 1), []);
    engine.on_time(deadline_ns).unwrap();
    assert_eq!(sent(&mut engine, deadline_ns), [(2, 1001, 2048, 5 * 1024)]);
    // A late answer to the first transmission counts as much as one to the second.
    for (cookie, piece) in [(1000, 2), (1001, 4), (1000, 5)] {
        let answer = reply(Op::Read, cookie, piece * 1024, 1024, Status::Ok);
        deliver(&mut engine, deadline_ns + MS, &answer).unwrap();
    }
    let last = reply(Op::Read, 1001, 6 * 1024, 1024, Status::Ok);
    assert!(deliver(&mut engine, deadline_ns + MS, &last).unwrap().1.is_some());
    // And now nobody knows either cookie.
    assert_eq!(deliver(&mut engine, deadline_ns + MS, &last), Ok((vec![], None)));
}

#[test]
fn answers_that_fit_nothing_are_ignored() {
    let mut engine = engine(2);
    engine.start(Request::Read { offset: 4096, length: 2048 });
    engine.start(Request::write(0, vec![0; 1024]));
    sent(&mut engine, 0);
    let foreign = [
        reply(Op::Read, 999, 4096, 1024, Status::Ok),
        reply(Op::Read, 1000, 4096 - 1024, 1024, Status::Ok),
        reply(Op::Read, 1000, 4096 + 2048, 1024, Status::Ok),
        reply(Op::Read, 1000, 4096 + 512, 1024, Status::Ok),
        reply(Op::Read, 1000, 4096, 512, Status::Ok),
        reply(Op::Read, 1000, 4096, 2048, Status::Ok),
        reply(Op::Read, 1001, 0, 1024, Status::Ok),
        reply(Op::Write, 1000, 4096, 2048, Status::Ok),
        reply(Op::Write, 1001, 512, 1024, Status::Ok),
        reply(Op::Flush, 1001, 0, 0, Status::Ok),
        vec![0; 10],
        b"NBLK".to_vec(),
    ];
    for datagram in &foreign {
        assert_eq!(deliver(&mut engine, MS, datagram), Ok((vec![], None)), "{datagram:?}");
    }
    assert_eq!(engine.stats().ignored, foreign.len() as u64);
}

#[test]
fn a_silent_server_is_given_up_after_the_last_try() {
    let mut engine = engine(1);
    engine.start(Request::Flush);
    let mut tries = 0;
    let mut now_ns = 0;
    let failure = loop {
        tries += sent(&mut engine, now_ns).len();
        now_ns = engine.deadline_ns().unwrap();
        if let Err(failure) = engine.on_time(now_ns) {
            break failure;
        }
    };
    assert_eq!(tries, 4);
    // 250 + 500 + 1000 + 2000 ms.
    let expected = Failure::NoAnswer { op: v2::Op::Flush, tries: 4, waited_ns: 3750 * MS };
    assert_eq!(failure, expected);
}

#[test]
fn busy_costs_patience_and_not_tries() {
    let mut engine = engine(1);
    engine.start(Request::Read { offset: 0, length: 2048 });
    let mut now_ns = 0;
    let mut rounds = 0;
    let failure = loop {
        let transmissions = sent(&mut engine, now_ns);
        assert_eq!(transmissions.len(), 1);
        now_ns += MS;
        let busy = reply(Op::Read, transmissions[0].1, 0, 2048, Status::Busy);
        if let Err(failure) = deliver(&mut engine, now_ns, &busy) {
            break failure;
        }
        // Doubled, it changes nothing.
        let deadline_ns = engine.deadline_ns();
        deliver(&mut engine, now_ns, &busy).unwrap();
        assert_eq!(engine.deadline_ns(), deadline_ns);
        now_ns = deadline_ns.unwrap();
        engine.on_time(now_ns).unwrap();
        rounds += 1;
    };
    assert!(matches!(failure, End::Failed(Failure::StillBusy { waited_ns }) if waited_ns > 1000 * MS));
    assert!(rounds > 4, "{rounds} rounds of busy are more than the tries allowed");
}

#[test]
fn part_of_a_read_may_be_busy() {
    let mut engine = engine(1);
    engine.start(Request::Read { offset: 0, length: 4096 });
    sent(&mut engine, 0);
    deliver(&mut engine, MS, &reply(Op::Read, 1000, 2048, 2048, Status::Busy)).unwrap();
    for piece in 0..2 {
        deliver(&mut engine, 2 * MS, &reply(Op::Read, 1000, piece * 1024, 1024, Status::Ok)).unwrap();
    }
    let now_ns = engine.deadline_ns().unwrap();
    engine.on_time(now_ns).unwrap();
    assert_eq!(sent(&mut engine, now_ns), [(2, 1001, 2048, 2048)]);
}

#[test]
fn a_refusal_names_the_part() {
    let mut engine = engine(1);
    engine.start(Request::Read { offset: 0, length: 4096 });
    sent(&mut engine, 0);
    let failure = deliver(&mut engine, MS, &reply(Op::Read, 1000, 1024, 1024, Status::IoError));
    let expected =
        Refusal { id: 0, op: v2::Op::Read, offset: 1024, length: 1024, status: v2::Status::IoError };
    assert_eq!(failure, Err(End::Refused(expected)));
    // The others go on without it.
    assert!(engine.is_idle() && engine.deadline_ns().is_none());
}

#[test]
fn a_bad_request_is_asked_again_before_it_is_believed() {
    let mut engine = engine(1);
    engine.start(Request::Flush);
    for cookie in 1000..1004 {
        assert_eq!(sent(&mut engine, 0).len(), 1);
        deliver(&mut engine, MS, &reply(Op::Flush, cookie, 0, 0, Status::BadRequest)).unwrap();
    }
    sent(&mut engine, MS);
    let failure = deliver(&mut engine, MS, &reply(Op::Flush, 1004, 0, 0, Status::BadRequest));
    assert!(matches!(failure, Err(End::Refused(Refusal { status: v2::Status::BadRequest, .. }))));
}

#[test]
fn the_window_counts_requests_and_the_slots_datagrams() {
    let mut engine = engine(3);
    engine.config.datagrams = 20;
    let read = |length| Request::Read { offset: 0, length };
    assert!(engine.has_room(&read(1 << 20)), "one request may always start");
    engine.start(Request::Read { offset: 0, length: 16 * 1024 });
    assert!(engine.has_room(&read(4 * 1024)));
    assert!(!engine.has_room(&read(5 * 1024)));
    engine.start(Request::Flush);
    engine.start(Request::Flush);
    assert!(!engine.has_room(&Request::Flush));
}

/// A network and a server in one: what becomes of each datagram is the test's to say.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Lost,
    AnswerLost,
    Doubled,
    Late(u64),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Arrives),
        1 => Just(Fate::Lost),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Doubled),
        1 => (1..60u64).prop_map(Fate::Late),
    ]
}

proptest! {
    /// Through any mixture of loss, doubling and delay every request lands exactly once, with every
    /// piece exactly once, and nothing is left behind.
    #[test]
    fn every_request_lands_once(
        requests in proptest::collection::vec((0..3u8, 0..64u64, 1..17u32), 1..30),
        fates in proptest::collection::vec(fate(), 1..200),
        window in 1..20u32,
    ) {
        let mut engine = engine(window);
        engine.config.max_tries = 100;
        let mut fates = fates.into_iter().chain(std::iter::repeat(Fate::Arrives));
        let mut waiting: VecDeque<Request> = requests.iter().map(|&(kind, block, pieces)| match kind {
            0 => Request::Read { offset: block * 1024, length: pieces * 512 },
            1 => Request::write(block * 1024, vec![1; pieces as usize * 64]),
            _ => Request::Flush,
        }).collect();
        let total = waiting.len();
        let mut now_ns = 0;
        let mut on_the_way: BTreeSet<(u64, u64, Vec<u8>)> = BTreeSet::new();
        let mut serial = 0;
        let mut landed: HashMap<u64, u32> = HashMap::new();
        let mut data: HashMap<u64, u64> = HashMap::new();
        let mut datagram = Vec::new();
        for _ in 0..100_000 {
            while let Some(next) = waiting.front() && engine.has_room(next) {
                engine.start(waiting.pop_front().unwrap());
            }
            if engine.is_idle() {
                break;
            }
            while engine.next_datagram(now_ns, &mut datagram) {
                let fate = fates.next().unwrap();
                if matches!(fate, Fate::Lost) {
                    continue;
                }
                let view = HeaderView::new(&datagram).unwrap();
                let op = Op::try_from(view.op()).unwrap();
                let mut answers = Vec::new();
                if op == Op::Read {
                    let mut at = 0;
                    while at < view.length() {
                        let bytes = (view.length() - at).min(1024);
                        answers.push(reply(op, view.cookie(), view.offset() + u64::from(at), bytes, Status::Ok));
                        at += bytes;
                    }
                } else {
                    answers.push(reply(op, view.cookie(), view.offset(), view.length(), Status::Ok));
                }
                let delay_ms = if let Fate::Late(ms) = fate { ms } else { 1 };
                if matches!(fate, Fate::AnswerLost) {
                    answers.pop();
                }
                for answer in answers {
                    serial += 1;
                    on_the_way.insert((now_ns + delay_ms * MS, serial, answer.clone()));
                    if matches!(fate, Fate::Doubled) {
                        on_the_way.insert((now_ns + 7 * MS, serial, answer));
                    }
                }
            }
            let arrival_ns = on_the_way.first().map(|(at, ..)| *at);
            now_ns = arrival_ns.into_iter().chain(engine.deadline_ns()).min().expect("something must come").max(now_ns);
            while let Some((at, ..)) = on_the_way.first() && *at <= now_ns {
                let (_, _, answer) = on_the_way.pop_first().unwrap();
                engine.receive(now_ns, &answer, &mut |event| {
                    match event {
                        Event::Data { id, bytes, .. } => *data.entry(id).or_default() += bytes.len() as u64,
                        Event::Landed(landing) => {
                            *landed.entry(landing.id).or_default() += 1;
                            if landing.op == v2::Op::Read {
                                assert_eq!(data[&landing.id], u64::from(landing.length));
                            }
                        }
                        Event::Info(_) | Event::Refused(_) => {}
                    }
                    Ok::<(), Failure>(())
                }).unwrap();
            }
            engine.on_time(now_ns).unwrap();
        }
        prop_assert!(waiting.is_empty() && engine.is_idle());
        prop_assert_eq!(landed.len(), total);
        prop_assert!(landed.values().all(|&times| times == 1));
        prop_assert!(engine.transmissions.is_empty() && engine.timers.is_empty());
        prop_assert_eq!(engine.datagrams, 0);
    }

    #[test]
    fn any_bytes_are_judged_without_panic(datagrams: Vec<Vec<u8>>) {
        let mut engine = engine(4);
        engine.start(Request::Read { offset: 0, length: 4096 });
        sent(&mut engine, 0);
        for datagram in datagrams {
            let _ = deliver(&mut engine, MS, &datagram);
        }
    }
}
