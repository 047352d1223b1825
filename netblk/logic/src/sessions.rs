//! The sessions of a service: a table of fixed size, each entry with its keys, its window of numbers and
//! the parts of writes that are not complete.
//!
//! A session's number is random but for its low bits, which say where in the table it is: finding it costs
//! one comparison, and guessing it is as hard as guessing the other 58.
//!
//! What an ended session leaves behind (pieces of incomplete writes) goes to the caller, who knows what it
//! costs to give them up.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};

use netblk_proto::v2::{Assemblies, ConnectBody, HeaderView, PreSharedKey, SessionKeys, Window};

use crate::challenge::Challenger;

/// Sessions of a service.
pub const MOST_SESSIONS: usize = 64;

/// Sessions of one address.
pub const MOST_OF_ONE_ADDRESS: usize = 16;

/// A session that was silent for so long is ended.
pub const IDLE_NS: u64 = 120_000_000_000;

/// A session that was silent for so long makes room for a new one.
pub const YIELDING_NS: u64 = 10_000_000_000;

/// Where in the table a session is, less than [`MOST_SESSIONS`].
pub type SessionPlace = usize;

/// The bits of a session's number that are its place.
const PLACE_MASK: u64 = MOST_SESSIONS as u64 - 1;

const _: () = assert!(MOST_SESSIONS.is_power_of_two());

/// A session. `T` is a piece of a write that is not complete.
pub struct Session<T> {
    id: u64,
    client: SocketAddrV4,
    keys: SessionKeys,
    client_nonce: [u8; 16],
    challenge: [u8; 16],
    since_ns: u64,
    heard_ns: u64,
    /// What became of its numbered requests.
    pub window: Window,
    /// Its incomplete writes.
    pub assemblies: Assemblies<T>,
    /// Requests whose tag held.
    pub requests: u64,
    /// Numbered requests that came again: answered from the record, or dropped because they were under way.
    pub duplicates: u64,
    /// Datagrams with a wrong tag.
    pub bad_tags: u64,
}

impl<T> Session<T> {
    /// Its number.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Whose it is.
    pub const fn client(&self) -> SocketAddrV4 {
        self.client
    }

    /// Its keys.
    pub const fn keys(&self) -> &SessionKeys {
        &self.keys
    }

    /// When it began.
    pub const fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// A datagram with a right tag has come.
    pub fn heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.requests += 1;
    }

    /// For how long it has been silent.
    pub const fn silent_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.heard_ns)
    }
}

/// A CONNECT that led to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    /// Where the session is.
    pub place: SessionPlace,
    /// Its number.
    pub id: u64,
}

/// Why a CONNECT did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectError {
    /// The challenge is no longer, or never was, this client's, or the epoch another server's; or the client's address and port
    /// have a session that is used, and the CONNECT does not name it.
    Stale,
    /// The tag does not hold: the client does not know the key.
    Tag,
    /// There is no room.
    Full,
}

/// See the module.
pub struct Sessions<T> {
    challenger: Challenger,
    epoch: u64,
    entries: Vec<Option<Box<Session<T>>>>,
}

impl<T> Sessions<T> {
    /// No session yet. `secret` and `epoch` are random, fresh for every start of a service.
    pub fn new(secret: [u8; 16], epoch: u64) -> Self {
        Self {
            challenger: Challenger::new(secret),
            epoch,
            entries: (0..MOST_SESSIONS).map(|_| None).collect(),
        }
    }

    /// Tells this start of the service from every other.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Who answers HELLO.
    pub const fn challenger(&self) -> &Challenger {
        &self.challenger
    }

    /// The session with this number, if it is this client's.
    pub fn find(&mut self, id: u64, client: SocketAddrV4) -> Option<(SessionPlace, &mut Session<T>)> {
        let place = Self::place_of(id);
        let session = self.entries[place].as_deref_mut()?;
        (session.id == id && session.client == client).then_some((place, session))
    }

    /// The session with this number, if it still lives.
    pub fn get(&mut self, id: u64) -> Option<&mut Session<T>> {
        self.entries[Self::place_of(id)].as_deref_mut().filter(|session| session.id == id)
    }

    /// A CONNECT with this body has come from `client`. `random` becomes the session's number, but for its
    /// place. Sessions that end through this, because they are replaced or make room, go to `ended`.
    ///
    /// # Errors
    /// [`ConnectError`]; then nothing has changed, but that with [`ConnectError::Full`] what was to be replaced
    /// has ended.
    #[expect(
        clippy::too_many_arguments,
        reason = "the world of a CONNECT: who, what, the secret, time and chance"
    )]
    pub fn connect(
        &mut self,
        client: SocketAddrV4,
        view: &HeaderView<'_>,
        body: &ConnectBody,
        secret: &PreSharedKey,
        now_ns: u64,
        random: u64,
        ended: &mut dyn FnMut(SessionPlace, Session<T>),
    ) -> Result<Connected, ConnectError> {
        let ConnectBody { client_nonce, challenge, epoch, replaces } = body;
        // First what costs little: only who was given the challenge makes us derive keys.
        if *epoch != self.epoch || !self.challenger.holds(client, client_nonce, challenge, now_ns) {
            return Err(ConnectError::Stale);
        }
        let keys = SessionKeys::derive(secret, client_nonce, challenge, *epoch);
        if !view.is_tagged_with(&keys.client_to_server) {
            return Err(ConnectError::Tag);
        }
        let same_address = self.places(|session| session.client == client).next();
        if let Some(place) = same_address
            && let Some(session) = &self.entries[place]
            && (session.client_nonce, session.challenge) == (*client_nonce, *challenge)
        {
            return Ok(Connected { place, id: session.id });
        }
        // It may be one of a session that was there before, recorded by somebody: it must not end one that is used.
        if let Some(place) = same_address
            && let Some(session) = &self.entries[place]
            && session.id != *replaces
            && session.requests > 0
            && session.silent_ns(now_ns) < YIELDING_NS
        {
            return Err(ConnectError::Stale);
        }
        let replaced = Self::place_of(*replaces);
        let replaced = self.entries[replaced].as_ref().filter(|old| old.id == *replaces).map(|_| replaced);
        for place in [same_address, replaced].into_iter().flatten() {
            self.end(place, ended);
        }
        let place = self.make_room(*client.ip(), now_ns, ended).ok_or(ConnectError::Full)?;
        // Not 0, which says "no session", and not the number of the one that was here before.
        let id = (random & !PLACE_MASK | 1 << 63) | place as u64;
        self.entries[place] = Some(Box::new(Session {
            id,
            client,
            keys,
            client_nonce: *client_nonce,
            challenge: *challenge,
            since_ns: now_ns,
            heard_ns: now_ns,
            window: Window::new(),
            assemblies: Assemblies::new(),
            requests: 0,
            duplicates: 0,
            bad_tags: 0,
        }));
        Ok(Connected { place, id })
    }

    /// Ends the session at a place, if there is one.
    pub fn end(&mut self, place: SessionPlace, ended: &mut dyn FnMut(SessionPlace, Session<T>)) {
        if let Some(session) = self.entries[place].take() {
            ended(place, *session);
        }
    }

    /// Ends what was silent for too long. Returns when to ask again: when the next one will be, if none
    /// of them is heard of; `None` without sessions.
    pub fn expire(&mut self, now_ns: u64, ended: &mut dyn FnMut(SessionPlace, Session<T>)) -> Option<u64> {
        for place in 0..MOST_SESSIONS {
            if self.entries[place].as_ref().is_some_and(|session| session.silent_ns(now_ns) >= IDLE_NS) {
                self.end(place, ended);
            }
        }
        self.iter().map(|(_, session)| session.heard_ns.saturating_add(IDLE_NS)).min()
    }

    /// Every session, with its place.
    pub fn iter(&self) -> impl Iterator<Item = (SessionPlace, &Session<T>)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(place, entry)| entry.as_deref().map(|session| (place, session)))
    }

    fn place_of(id: u64) -> SessionPlace {
        (id & PLACE_MASK) as usize
    }

    fn places(&self, wanted: impl Fn(&Session<T>) -> bool) -> impl Iterator<Item = SessionPlace> {
        self.entries
            .iter()
            .enumerate()
            .filter(move |(_, entry)| entry.as_ref().is_some_and(|session| wanted(session)))
            .map(|(place, _)| place)
    }

    /// A place for one more session of this address: a free one, or that of a session which was silent for
    /// a while, the most silent first; of the same address, if that has its share already.
    fn make_room(
        &mut self,
        address: Ipv4Addr,
        now_ns: u64,
        ended: &mut dyn FnMut(SessionPlace, Session<T>),
    ) -> Option<SessionPlace> {
        let of_address = |session: &Session<T>| *session.client.ip() == address;
        let is_full = self.places(of_address).count() >= MOST_OF_ONE_ADDRESS;
        let free = self.entries.iter().position(Option::is_none);
        if !is_full && free.is_some() {
            return free;
        }
        let silent = |place: &SessionPlace| {
            self.entries[*place].as_ref().map_or(0, |session| session.silent_ns(now_ns))
        };
        let yielding = self.places(|session| !is_full || of_address(session)).max_by_key(silent)?;
        if silent(&yielding) < YIELDING_NS {
            return None;
        }
        self.end(yielding, ended);
        Some(yielding)
    }
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
