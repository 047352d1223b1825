//! The engine against a server of version 2 that is restarted and loses its cache, over a network that
//! loses, doubles, delays and damages: the disk that comes of it, compared with a plain array.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netblk_proto::v2::{
    Added, Arrival, Assemblies, Capabilities, Command, Device, HeaderView, Info, Limits, NONCE_BYTES, Op,
    PreSharedKey, ReplyHeader, SessionKeys, Status, Window, WriteShape, check,
};
use netblk_proto::{Flags, Info as DeviceInfo, Label, SectorRange};
use proptest::prelude::*;

use super::{Config, Engine, Event, Failure, Protocol, Request};

const MS: u64 = 1_000_000;
const SECTOR: usize = 512;
const SECTORS: usize = 64;
const KEY: [u8; 32] = [7; 32];

/// What a sector holds: the number of the write it comes from.
type Content = [u32; SECTORS];

struct Session {
    keys: SessionKeys,
    window: Window,
    parts: Assemblies<Vec<u8>>,
}

/// A server in the simplest form: everything is done the moment it arrives.
struct Server {
    epoch: u64,
    challenges: u64,
    sessions: BTreeMap<u64, Session>,
    /// By nonce: a CONNECT that comes twice makes one session.
    connected: BTreeMap<[u8; NONCE_BYTES], u64>,
    next_session: u64,
    limits: Limits,
    cached: Content,
    durable: Content,
    /// Numbers of writes in the order in which they were carried out.
    carried_out: Vec<u32>,
}

fn limits(datagram: u16, sector_bytes: u32) -> Limits {
    let device = Device {
        sector_bytes,
        sectors: (SECTORS * SECTOR) as u64 / u64::from(sector_bytes),
        read_only: false,
        max_write_bytes: 4096,
        max_discard_bytes: 1 << 20,
        max_write_zeroes_bytes: 1 << 20,
    };
    Limits::new(device, datagram + 94).unwrap()
}

impl Server {
    fn new(limits: Limits) -> Self {
        Self {
            epoch: 1,
            challenges: 0,
            sessions: BTreeMap::new(),
            connected: BTreeMap::new(),
            next_session: 100,
            limits,
            cached: [0; SECTORS],
            durable: [0; SECTORS],
            carried_out: Vec::new(),
        }
    }

    /// The power goes and comes back: what was not durable is gone.
    fn restart(&mut self) {
        self.epoch += 1;
        self.sessions.clear();
        self.connected.clear();
        self.cached = self.durable;
    }

    fn info(&self) -> Info {
        let limits = &self.limits;
        Info {
            device: DeviceInfo {
                size_bytes: limits.size_bytes(),
                sector_bytes: limits.sector_bytes(),
                max_read_bytes: limits.max_read_bytes(),
                max_write_bytes: limits.max_write_bytes(),
                datagram_bytes: limits.datagram_bytes(),
                slots: 256,
                read_only: false,
                mtu: 1500,
                name: Label::new("fake"),
                model: Label::new("fake"),
            },
            capabilities: Capabilities {
                discard: true,
                write_zeroes: true,
                key_in_use: true,
                volatile_cache: true,
            },
            max_discard_bytes: limits.max_discard_bytes(),
            max_write_zeroes_bytes: limits.max_write_zeroes_bytes(),
            write_window: netblk_proto::v2::WINDOW,
            epoch: self.epoch,
        }
    }

    /// The answers to a datagram.
    fn receive(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let Ok(view) = HeaderView::new(datagram) else { return Vec::new() };
        if !view.is_request() {
            return Vec::new();
        }
        match view.session() {
            0 => self.connect(&view),
            number => match self.sessions.get(&number) {
                None => vec![ReplyHeader::echo(&view, Status::StaleSession).seal(None, 0, &[]).to_vec()],
                Some(session) if !view.is_tagged_with(&session.keys.client_to_server) => Vec::new(),
                Some(_) => self.serve(number, &view),
            },
        }
    }

    fn connect(&mut self, view: &HeaderView<'_>) -> Vec<Vec<u8>> {
        let plain = |status| vec![ReplyHeader::echo(view, status).seal(None, 0, &[]).to_vec()];
        let Ok(request) = check(view, &self.limits) else { return plain(Status::BadRequest) };
        match request.command {
            Command::Hello(hello) => {
                self.challenges += 1;
                let body = netblk_proto::v2::HelloReply {
                    challenge: challenge(&hello.client_nonce),
                    epoch: self.epoch,
                    key_needed: true,
                }
                .to_bytes();
                let header = ReplyHeader::new(Op::Hello, 0, request.cookie, 0, body.len() as u32, Status::Ok);
                vec![[&header.seal(None, body.len(), &body)[..], &body].concat()]
            }
            Command::Connect(connect) => {
                if connect.epoch != self.epoch || connect.challenge != challenge(&connect.client_nonce) {
                    return plain(Status::StaleSession);
                }
                let key = PreSharedKey::new(KEY);
                let keys = SessionKeys::derive(&key, &connect.client_nonce, &connect.challenge, self.epoch);
                if !view.is_tagged_with(&keys.client_to_server) {
                    return plain(Status::Refused);
                }
                let number = *self.connected.entry(connect.client_nonce).or_insert_with(|| {
                    self.sessions.remove(&connect.replaces);
                    self.next_session += 1;
                    let session =
                        Session { keys: keys.clone(), window: Window::new(), parts: Assemblies::new() };
                    self.sessions.insert(self.next_session, session);
                    self.next_session
                });
                if !self.sessions.contains_key(&number) {
                    return plain(Status::StaleSession);
                }
                let body = self.info().to_bytes();
                let header =
                    ReplyHeader::new(Op::Connect, number, request.cookie, 0, body.len() as u32, Status::Ok);
                vec![[&header.seal(Some(&keys.server_to_client), body.len(), &body)[..], &body].concat()]
            }
            _ => plain(Status::StaleSession),
        }
    }

    fn serve(&mut self, number: u64, view: &HeaderView<'_>) -> Vec<Vec<u8>> {
        let limits = self.limits;
        let Some(session) = self.sessions.get_mut(&number) else { return Vec::new() };
        let key = session.keys.server_to_client;
        let echo = |status| vec![ReplyHeader::echo(view, status).seal(Some(&key), 0, &[]).to_vec()];
        let request = match check(view, &limits) {
            Ok(request) => request,
            Err(fault) => return echo(fault.status()),
        };
        if let Some(sequence) = request.command.sequence() {
            let mut data = view.body().to_vec();
            if let Command::Write(range, _, part) = request.command {
                match session.window.look(sequence) {
                    Arrival::New => {}
                    Arrival::Running => return Vec::new(),
                    Arrival::Done(status) => return echo(status),
                    Arrival::TooOld => return echo(Status::TooOld),
                }
                let flags = Flags::from_bits(view.flags()).unwrap_or(Flags::NONE);
                let (offset, length) = (range.offset(), range.length());
                let shape = WriteShape { sequence, offset, length, flags, parts: part.parts };
                match session.parts.add(shape, part.part, data) {
                    Added::Complete(parts) => data = parts.into_iter().flatten().collect(),
                    _ => return Vec::new(),
                }
            }
            match session.window.arrive(sequence) {
                Arrival::New => session.window.finish(sequence, Status::Ok),
                Arrival::Running => return Vec::new(),
                Arrival::Done(status) => return echo(status),
                Arrival::TooOld => return echo(Status::TooOld),
            }
            let range = match request.command {
                Command::Write(range, ..) | Command::Discard(range, _) | Command::WriteZeroes(range, ..) => {
                    range
                }
                _ => return Vec::new(),
            };
            self.change(&range, &data, view.flags() & 1 != 0);
            return echo(Status::Ok);
        }
        match request.command {
            Command::Read(range, _) => {
                let (start, length) = (range.offset(), range.length());
                let datagram = limits.datagram_bytes();
                let parts = limits.datagrams(length) as u16;
                (0..parts)
                    .map(|part| {
                        let at = start + u64::from(part) * u64::from(datagram);
                        let bytes = (start + u64::from(length) - at).min(datagram.into()) as usize;
                        let data = self.bytes(at, bytes);
                        let header =
                            ReplyHeader::new(Op::Read, number, request.cookie, at, bytes as u32, Status::Ok)
                                .in_parts(part, parts);
                        [&header.seal(Some(&key), bytes, &data)[..], &data].concat()
                    })
                    .collect()
            }
            Command::Flush => {
                self.durable = self.cached;
                echo(Status::Ok)
            }
            _ => echo(Status::Ok),
        }
    }

    fn change(&mut self, range: &SectorRange, data: &[u8], forced: bool) {
        let first = (range.offset() / SECTOR as u64) as usize;
        let sectors = range.length() as usize / SECTOR;
        for index in 0..sectors {
            let bytes = data.get(index * SECTOR..index * SECTOR + 4);
            let value = bytes.map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
            self.cached[first + index] = value;
            if forced {
                self.durable[first + index] = value;
            }
        }
        self.carried_out.push(self.cached[first]);
    }

    fn bytes(&self, at: u64, bytes: usize) -> Vec<u8> {
        let first = at as usize / SECTOR;
        (0..bytes / SECTOR).flat_map(|index| sector(self.cached[first + index])).collect()
    }
}

fn challenge(nonce: &[u8; NONCE_BYTES]) -> [u8; 16] {
    nonce.map(|byte| byte ^ 0x55)
}

fn sector(value: u32) -> Vec<u8> {
    value.to_be_bytes().into_iter().cycle().take(SECTOR).collect()
}

fn engine(window: u32, log_bytes: usize) -> Engine {
    let mut nonce = 0_u8;
    Engine::new(Config {
        window,
        datagrams: 256,
        datagram_bytes: 1024,
        sector_bytes: 512,
        max_tries: u32::MAX,
        patience_ns: 3_600_000 * MS,
        busy_patience_ns: 1_000 * MS,
        first_cookie: 1000,
        protocol: Protocol::Two,
        key: PreSharedKey::new(KEY),
        log_bytes,
        nonces: Box::new(move || {
            nonce = nonce.wrapping_add(1);
            [nonce; NONCE_BYTES]
        }),
    })
}

/// What becomes of a datagram.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Lost,
    Doubled(u64),
    Late(u64),
    Damaged(usize),
    /// The server is restarted before it arrives.
    PowerCut,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        30 => Just(Fate::Arrives),
        3 => Just(Fate::Lost),
        3 => (1..4000_u64).prop_map(Fate::Doubled),
        3 => (1..3000_u64).prop_map(Fate::Late),
        2 => (0..66 * 8_usize).prop_map(Fate::Damaged),
        1 => Just(Fate::PowerCut),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Wish {
    Write { first: usize, sectors: usize, fua: bool },
    Zeroes { first: usize, sectors: usize, fua: bool },
    Read { first: usize, sectors: usize },
    Flush,
}

fn wish(step: usize) -> impl Strategy<Value = Wish> {
    let range = (0..SECTORS / step, 1..4_usize).prop_map(move |(first, count)| {
        let first = first * step;
        (first, (count * step).min(SECTORS - first).min(8))
    });
    (range, 0..10, any::<bool>()).prop_map(|((first, sectors), kind, fua)| match kind {
        0..6 => Wish::Write { first, sectors, fua: fua && kind == 0 },
        6 => Wish::Zeroes { first, sectors, fua },
        7 | 8 => Wish::Read { first, sectors },
        _ => Wish::Flush,
    })
}

/// Runs wishes one batch after the other (what overlaps is not under way together), and checks every read.
fn run(
    wishes: &[Wish],
    fates: &[Fate],
    window: u32,
    log_bytes: usize,
    limits: Limits,
) -> (Engine, Server, Content) {
    let mut engine = engine(window, log_bytes);
    let mut server = Server::new(limits);
    engine.configure(&server.info().device, 256);
    let mut fates = fates.iter().copied();
    let mut expected: Content = [0; SECTORS];
    let mut waiting: VecDeque<(usize, Wish)> = wishes.iter().copied().enumerate().collect();
    let mut under_way: BTreeMap<u64, (Wish, Vec<u8>)> = BTreeMap::new();
    // Time, serial number, whether to the server, bytes, whether the power goes first.
    let mut on_the_way: BTreeSet<(u64, u64, bool, Vec<u8>, bool)> = BTreeSet::new();
    let (mut now_ns, mut serial) = (0, 0);
    let mut calm = false;
    let mut datagram = Vec::new();
    let touches = |wish: &Wish| match *wish {
        Wish::Write { first, sectors, .. } | Wish::Zeroes { first, sectors, .. } => (first, sectors, true),
        Wish::Read { first, sectors } => (first, sectors, false),
        Wish::Flush => (0, 0, false),
    };
    for _ in 0..200_000 {
        while let Some(&(number, wish)) = waiting.front() {
            let (first, sectors, changes) = touches(&wish);
            let conflict = under_way.values().any(|(other, _)| {
                let (a, count, other_changes) = touches(other);
                (changes || other_changes) && a < first + sectors && first < a + count
            });
            let offset = (first * SECTOR) as u64;
            let length = (sectors * SECTOR) as u32;
            let value = (number as u32).wrapping_add(1);
            let request = match wish {
                Wish::Write { fua, .. } => {
                    let data = sector(value).repeat(sectors);
                    Request::Write { offset, data: std::sync::Arc::new(data), fua }
                }
                Wish::Zeroes { fua, .. } => Request::WriteZeroes { offset, length, fua },
                Wish::Read { .. } => Request::Read { offset, length },
                Wish::Flush => Request::Flush,
            };
            if conflict || !engine.has_room(&request) {
                break;
            }
            waiting.pop_front();
            match wish {
                Wish::Write { .. } => expected[first..first + sectors].fill(value),
                Wish::Zeroes { .. } => expected[first..first + sectors].fill(0),
                _ => {}
            }
            under_way.insert(engine.start(request), (wish, Vec::new()));
        }
        if waiting.is_empty() && engine.is_idle() {
            if calm {
                break;
            }
            // Only who asks learns that the server was restarted: the last word is a FLUSH, in fair weather.
            calm = true;
            waiting.push_back((usize::MAX, Wish::Flush));
            continue;
        }
        while engine.next_datagram(now_ns, &mut datagram) {
            serial += 1;
            let mut bytes = datagram.clone();
            let mut at_ns = now_ns + MS;
            let mut cut = false;
            match fates.next().filter(|_| !calm).unwrap_or(Fate::Arrives) {
                Fate::Arrives => {}
                Fate::Lost => continue,
                Fate::Doubled(ms) => {
                    on_the_way.insert((now_ns + ms * MS, serial, true, bytes.clone(), false));
                }
                Fate::Late(ms) => at_ns = now_ns + ms * MS,
                Fate::Damaged(bit) => bytes[bit / 8] ^= 1 << (bit % 8),
                Fate::PowerCut => cut = true,
            }
            serial += 1;
            on_the_way.insert((at_ns, serial, true, bytes, cut));
        }
        let arrival_ns = on_the_way.first().map(|(at, ..)| *at);
        now_ns = arrival_ns
            .into_iter()
            .chain(engine.deadline_ns())
            .min()
            .expect("something must come")
            .max(now_ns);
        while let Some((at, ..)) = on_the_way.first()
            && *at <= now_ns
        {
            let (_, _, to_server, bytes, cut) = on_the_way.pop_first().unwrap();
            if cut && !calm {
                server.restart();
            }
            if to_server {
                for answer in server.receive(&bytes) {
                    serial += 1;
                    match fates.next().filter(|_| !calm).unwrap_or(Fate::Arrives) {
                        Fate::Lost => {}
                        Fate::Doubled(ms) => {
                            on_the_way.insert((now_ns + ms * MS, serial, false, answer.clone(), false));
                            on_the_way.insert((now_ns + MS, serial, false, answer, false));
                        }
                        Fate::Late(ms) => {
                            on_the_way.insert((now_ns + ms * MS, serial, false, answer, false));
                        }
                        _ => {
                            on_the_way.insert((now_ns + MS, serial, false, answer, false));
                        }
                    }
                }
                continue;
            }
            engine
                .receive(now_ns, &bytes, &mut |event| {
                    match event {
                        Event::Data { id, offset, bytes } => {
                            let (wish, data) = under_way.get_mut(&id).unwrap();
                            let start = offset as usize - touches(wish).0 * SECTOR;
                            data.resize(data.len().max(start + bytes.len()), 0);
                            data[start..start + bytes.len()].copy_from_slice(bytes);
                        }
                        Event::Landed(landed) => {
                            if let Some((Wish::Read { first, sectors }, data)) = under_way.remove(&landed.id)
                            {
                                let right: Vec<u8> = expected[first..first + sectors]
                                    .iter()
                                    .flat_map(|&value| sector(value))
                                    .collect();
                                assert!(data == right, "sectors {first}.. are not what was written last");
                            }
                        }
                        Event::Refused(refusal) => panic!("{refusal:?}"),
                        Event::Info(_) => {}
                    }
                    Ok::<(), Failure>(())
                })
                .unwrap();
        }
        engine.on_time(now_ns).unwrap();
    }
    assert!(waiting.is_empty() && engine.is_idle(), "{} wishes are left", waiting.len());
    // What still is on its way arrives late: none of it may change anything.
    let before = server.cached;
    for (_, _, to_server, bytes, _) in on_the_way {
        if to_server {
            server.receive(&bytes);
        }
    }
    assert_eq!(before, server.cached, "a late duplicate was carried out");
    (engine, server, expected)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever the network does and however often the power goes: reads give what was written last, nothing that was
    /// answered is lost, nothing old comes back, no duplicate runs.
    #[test]
    fn the_disk_is_what_the_user_wrote(
        wishes in proptest::collection::vec(wish(1), 1..60),
        fates in proptest::collection::vec(fate(), 0..400),
        window in 1..20_u32,
        log_sectors in 1..40_usize,
    ) {
        let (_, server, expected) = run(&wishes, &fates, window, log_sectors * SECTOR, limits(1024, 512));
        prop_assert_eq!(server.durable, expected);
    }

    /// The same with sectors that take several datagrams.
    #[test]
    fn long_sectors_travel_in_parts(
        wishes in proptest::collection::vec(wish(8), 1..40),
        fates in proptest::collection::vec(fate(), 0..400),
        window in 1..20_u32,
    ) {
        let (_, server, expected) = run(&wishes, &fates, window, 1 << 20, limits(1024, 4096));
        prop_assert_eq!(server.durable, expected);
    }
}

#[test]
fn in_fair_weather_there_is_one_session_and_no_repetition() {
    let wishes: Vec<Wish> =
        (0..300).map(|number| Wish::Write { first: number % SECTORS, sectors: 1, fua: false }).collect();
    let (engine, server, expected) = run(&wishes, &[], 16, 1 << 20, limits(1024, 512));
    assert_eq!(server.cached, expected);
    let stats = engine.stats();
    assert_eq!((stats.sessions, stats.repeated, stats.replayed), (1, 0, 0));
    // HELLO, CONNECT and one datagram for each.
    // and the last FLUSH.
    assert_eq!((stats.sent, server.carried_out.len()), (303, 300));
    assert!(!engine.owes_flush());
}

#[test]
fn a_restart_makes_the_log_run_again_and_nothing_else() {
    let mut wishes: Vec<Wish> = (0..10).map(|first| Wish::Write { first, sectors: 1, fua: false }).collect();
    wishes.push(Wish::Flush);
    wishes.extend((10..15).map(|first| Wish::Write { first, sectors: 1, fua: false }));
    wishes.extend([Wish::Read { first: 0, sectors: 8 }, Wish::Read { first: 8, sectors: 7 }]);
    // HELLO, its answer, CONNECT, its answer, and two datagrams for each of 16; the power goes before the first READ.
    let mut fates = vec![Fate::Arrives; 4 + 32];
    fates.push(Fate::PowerCut);
    let (engine, server, expected) = run(&wishes, &fates, 1, 1 << 20, limits(1024, 512));
    assert_eq!(server.cached, expected);
    let stats = engine.stats();
    assert_eq!((stats.sessions, stats.replayed), (2, 5));
}

/// One change is lost again and again while as many as the server remembers are answered: the next waits for it, and it is
/// what is sent again.
#[test]
fn the_oldest_number_goes_out_again_when_no_new_one_may() {
    const CHANGES: u64 = 400;
    let mut engine = engine(500, 1 << 30);
    let mut server = Server::new(limits(1024, 512));
    engine.configure(&server.info().device, 1000);
    engine.set_window(500);
    for number in 0..CHANGES {
        engine.start(Request::write(number % SECTORS as u64 * SECTOR as u64, sector(number as u32 + 1)));
    }
    let (mut now_ns, mut landed, mut lost) = (0, 0, 0);
    let mut datagram = Vec::new();
    for _ in 0..100_000 {
        if engine.is_idle() {
            break;
        }
        let mut answers = Vec::new();
        while engine.next_datagram(now_ns, &mut datagram) {
            if HeaderView::new(&datagram).unwrap().sequence() == 1 && lost < 3 {
                lost += 1;
                continue;
            }
            answers.extend(server.receive(&datagram));
        }
        for answer in answers {
            let mut count = |event: Event<'_>| {
                landed += u64::from(matches!(event, Event::Landed(_)));
                Ok::<(), Failure>(())
            };
            engine.receive(now_ns, &answer, &mut count).unwrap();
        }
        if !engine.is_idle() {
            now_ns = engine.deadline_ns().expect("a moment to wait for").max(now_ns + MS);
        }
        engine.on_time(now_ns).unwrap();
    }
    assert_eq!((landed, lost, engine.stats().sessions), (CHANGES, 3, 1));
}

/// A run that fails in the middle of a replay begins it again: no answered change is passed over.
#[test]
fn a_replay_that_was_broken_off_begins_again() {
    let mut engine = engine(1, 1 << 30);
    let mut server = Server::new(limits(1024, 512));
    engine.configure(&server.info().device, 256);
    let mut now_ns = 0;
    let mut step = |engine: &mut Engine, server: &mut Server, deaf: bool| {
        let mut datagram = Vec::new();
        let mut answers = Vec::new();
        while engine.next_datagram(now_ns, &mut datagram) {
            // What changes the disk does not arrive at a server that is deaf.
            let changes = HeaderView::new(&datagram).unwrap().sequence() != 0;
            if !(deaf && changes) {
                answers.extend(server.receive(&datagram));
            }
        }
        for answer in answers {
            engine.receive(now_ns, &answer, &mut |_| Ok::<(), Failure>(())).unwrap();
        }
        now_ns += MS;
        engine.on_time(now_ns).unwrap();
    };
    for number in 0..5 {
        engine.start(Request::write(number * SECTOR as u64, sector(number as u32 + 1)));
    }
    while !engine.is_idle() {
        step(&mut engine, &mut server, false);
    }
    server.restart();
    assert_eq!(server.cached, [0; SECTORS]);
    engine.start(Request::Read { offset: 0, length: 512 });
    for _ in 0..50 {
        step(&mut engine, &mut server, true);
    }
    engine.abandon();
    engine.start(Request::Flush);
    while !engine.is_idle() {
        step(&mut engine, &mut server, false);
    }
    assert_eq!(server.durable[..6], [1, 2, 3, 4, 5, 0]);
}
