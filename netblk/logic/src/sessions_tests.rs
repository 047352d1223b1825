use super::*;
use netblk_proto::Flags;
use netblk_proto::v2::{Added, Arrival, Op, RequestHeader, WriteShape};
use proptest::prelude::*;

const EPOCH: u64 = 77;
const SECOND_NS: u64 = 1_000_000_000;

fn host(number: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, number), port)
}

/// A table with a clock and a source of random numbers.
struct World {
    sessions: Sessions<char>,
    now_ns: u64,
    random: u64,
    secret: PreSharedKey,
    ended: Vec<(u64, usize)>,
}

impl World {
    fn new() -> Self {
        let secret = PreSharedKey::new([9; 32]);
        Self {
            sessions: Sessions::new([1; 16], EPOCH),
            now_ns: 1 << 40,
            random: 1,
            secret,
            ended: Vec::new(),
        }
    }

    fn connect_with(
        &mut self,
        client: SocketAddrV4,
        key: &PreSharedKey,
        body: ConnectBody,
    ) -> Result<Connected, ConnectError> {
        let keys = SessionKeys::derive(key, &body.client_nonce, &body.challenge, body.epoch);
        let bytes = body.to_bytes();
        let header = RequestHeader::new(Op::Connect, 0, 1, 0, 0).seal(Some(&keys.client_to_server), &bytes);
        let datagram = [&header[..], &bytes].concat();
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let ended = &mut self.ended;
        self.sessions.connect(
            client,
            &HeaderView::new(&datagram).unwrap(),
            &body,
            &self.secret,
            self.now_ns,
            self.random,
            &mut |_, session| ended.push((session.id(), session.assemblies.pieces())),
        )
    }

    fn body(&self, client: SocketAddrV4, nonce: u8, replaces: u64) -> ConnectBody {
        let client_nonce = [nonce; 16];
        let challenge = self.sessions.challenger().challenge(client, &client_nonce, self.now_ns);
        ConnectBody { client_nonce, challenge, epoch: EPOCH, replaces }
    }

    fn connect(&mut self, client: SocketAddrV4, nonce: u8, replaces: u64) -> Result<Connected, ConnectError> {
        let body = self.body(client, nonce, replaces);
        let key = self.secret.clone();
        self.connect_with(client, &key, body)
    }
}

#[test]
fn a_session_is_its_clients_and_a_repeated_connect_gets_it_again() {
    let mut world = World::new();
    let client = host(1, 1000);
    let first = world.connect(client, 1, 0).unwrap();
    assert_eq!(world.connect(client, 1, 0), Ok(first));
    assert_eq!(world.sessions.find(first.id, client).map(|(place, _)| place), Some(first.place));
    assert!(world.sessions.find(first.id, host(1, 1001)).is_none());
    assert!(world.sessions.find(first.id, host(2, 1000)).is_none());
    assert!(world.sessions.find(first.id ^ 1 << 20, client).is_none());
    assert!(world.sessions.find(0, client).is_none());
    assert!(world.ended.is_empty());
}

#[test]
fn who_does_not_know_the_challenge_or_the_key_gets_nothing() {
    let mut world = World::new();
    let client = host(1, 1000);
    let good = world.body(client, 1, 0);
    let key = world.secret.clone();
    assert_eq!(world.connect_with(host(1, 1001), &key, good), Err(ConnectError::Stale));
    assert_eq!(world.connect_with(client, &key, ConnectBody { epoch: 78, ..good }), Err(ConnectError::Stale));
    assert_eq!(
        world.connect_with(client, &key, ConnectBody { challenge: [0; 16], ..good }),
        Err(ConnectError::Stale)
    );
    assert_eq!(world.connect_with(client, &PreSharedKey::NONE, good), Err(ConnectError::Tag));
    world.now_ns += 17 * SECOND_NS;
    assert_eq!(world.connect_with(client, &key, good), Err(ConnectError::Stale));
    assert_eq!(world.sessions.iter().count(), 0);
}

#[test]
fn a_new_session_ends_the_one_it_replaces_and_the_one_of_the_same_port() {
    let mut world = World::new();
    let old = world.connect(host(1, 1000), 1, 0).unwrap();
    let (_, session) = world.sessions.find(old.id, host(1, 1000)).unwrap();
    let shape = WriteShape { sequence: 1, offset: 0, length: 4096, flags: Flags::NONE, parts: 4 };
    assert_eq!(session.assemblies.add(shape, 0, 'a'), Added::Kept { given_up: None });
    let moved = world.connect(host(1, 2000), 2, old.id).unwrap();
    assert_eq!(world.ended, [(old.id, 1)]);
    assert!(world.sessions.get(old.id).is_none());
    let again = world.connect(host(1, 2000), 3, 0).unwrap();
    assert_eq!(world.ended[1..], [(moved.id, 0)]);
    let (_, session) = world.sessions.find(again.id, host(1, 2000)).unwrap();
    assert_eq!(session.window.look(1), Arrival::New);
    // An unknown number to replace harms nobody.
    assert!(world.connect(host(2, 1), 1, old.id).is_ok());
    assert_eq!(world.ended.len(), 2);
}

#[test]
fn a_recorded_connect_does_not_end_a_session_that_is_used() {
    let mut world = World::new();
    let recorded = (host(1, 1000), 1);
    let old = world.connect(recorded.0, recorded.1, 0).unwrap();
    world.sessions.get(old.id).unwrap().heard(world.now_ns);
    // The client has moved on to a new session, by name.
    let live = world.connect(recorded.0, 2, old.id).unwrap();
    world.sessions.get(live.id).unwrap().heard(world.now_ns);
    for replaces in [0, old.id] {
        let again = world.connect(recorded.0, recorded.1, replaces);
        assert_eq!(again, Err(ConnectError::Stale));
    }
    assert!(world.sessions.get(live.id).is_some());
    assert_eq!(world.ended.len(), 1);
    // A client that begins anew at the port of one that has gone waits until that was silent for a while.
    world.now_ns += YIELDING_NS;
    assert!(world.connect(recorded.0, 3, 0).is_ok());
    assert!(world.sessions.get(live.id).is_none());
}

#[test]
fn a_flood_from_one_address_gets_its_share_and_no_more() {
    let mut world = World::new();
    let others: Vec<Connected> = (0..3).map(|port| world.connect(host(9, port), 1, 0).unwrap()).collect();
    for port in 0..16 {
        assert!(world.connect(host(1, port), 1, 0).is_ok());
    }
    assert_eq!(world.connect(host(1, 99), 1, 0), Err(ConnectError::Full));
    world.now_ns += YIELDING_NS;
    // Now its oldest one makes room, and nobody else's.
    assert!(world.connect(host(1, 99), 1, 0).is_ok());
    assert_eq!(world.ended.len(), 1);
    assert!(others.iter().all(|other| world.sessions.get(other.id).is_some()));
}

#[test]
fn a_full_table_makes_room_by_ending_the_most_silent() {
    let mut world = World::new();
    let mut first = None;
    for number in 0..MOST_SESSIONS as u8 {
        let session = world.connect(host(number, 1), 1, 0).unwrap();
        first.get_or_insert(session);
        world.now_ns += 1;
    }
    assert_eq!(world.connect(host(200, 1), 1, 0), Err(ConnectError::Full));
    world.now_ns += YIELDING_NS;
    assert!(world.connect(host(200, 1), 1, 0).is_ok());
    assert_eq!(world.ended, [(first.unwrap().id, 0)]);
}

#[test]
fn silence_ends_a_session_and_the_next_time_to_look_is_known() {
    let mut world = World::new();
    assert_eq!(world.sessions.expire(world.now_ns, &mut |_, _| panic!()), None);
    let quiet = world.connect(host(1, 1), 1, 0).unwrap();
    world.now_ns += SECOND_NS;
    let busy = world.connect(host(2, 1), 1, 0).unwrap();
    let next = world.sessions.expire(world.now_ns, &mut |_, _| panic!("nobody is silent"));
    assert_eq!(next, Some(world.now_ns - SECOND_NS + IDLE_NS));
    world.now_ns = next.unwrap();
    world.sessions.get(busy.id).unwrap().heard(world.now_ns);
    let mut ended = Vec::new();
    let next = world.sessions.expire(world.now_ns, &mut |_, session| ended.push(session.id()));
    assert_eq!((ended, next), (vec![quiet.id], Some(world.now_ns + IDLE_NS)));
}

proptest! {
    /// Whatever is connected, replaced and left silent: the table is bounded, so is each address's part
    /// of it, numbers are of one session, and every session that is gone was reported once.
    #[test]
    fn the_table_is_bounded_and_nothing_gets_lost(
        steps in proptest::collection::vec((0u8..8, 0u16..40, 0u8..3, 0u64..20, any::<bool>()), 0..300),
    ) {
        let mut world = World::new();
        let mut known: Vec<u64> = Vec::new();
        for (address, port, nonce, seconds, replaces) in steps {
            world.now_ns += seconds * SECOND_NS;
            let replaced = if replaces { known.last().copied().unwrap_or(0) } else { 0 };
            if let Ok(connected) = world.connect(host(address, port), nonce, replaced) {
                if !known.contains(&connected.id) {
                    known.push(connected.id);
                }
                prop_assert!(world.sessions.find(connected.id, host(address, port)).is_some());
            }
            let (now_ns, ended) = (world.now_ns, &mut world.ended);
            world.sessions.expire(now_ns, &mut |_, session| ended.push((session.id(), 0)));
            let live: Vec<u64> = world.sessions.iter().map(|(_, session)| session.id()).collect();
            prop_assert!(live.len() <= MOST_SESSIONS);
            for number in 0..8 {
                let of_one = world.sessions.iter().filter(|(_, session)| *session.client().ip() == *host(number, 0).ip());
                prop_assert!(of_one.count() <= MOST_OF_ONE_ADDRESS);
            }
            prop_assert_eq!(live.len() + world.ended.len(), known.len());
        }
    }
}
