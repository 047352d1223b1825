//! A network that cannot be trusted: a UDP proxy that loses, doubles, delays, reorders and damages datagrams.
//!
//! It stands between a client and a service, both on the loopback. Each direction draws its decisions from a generator
//! of its own, seeded by the story, so that the same traffic meets the same weather. Every datagram is released at a
//! moment of its own by one thread that sleeps until the next is due.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often a thread that waits for datagrams looks whether the proxy has ended.
const LOOK: Duration = Duration::from_millis(50);

/// The longest UDP datagram.
const LONGEST: usize = 65_536;

/// What happens to datagrams, each by itself. Chances are in thousandths.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// It is lost.
    pub lost: u32,
    /// It comes twice; the second time after `late`.
    pub doubled: u32,
    /// It comes after `late`, and so behind others that were sent later.
    pub delayed: u32,
    /// One bit of its first `damaged_bytes` bytes is turned over.
    pub damaged: u32,
    /// Where damage is done, in bytes from the start of the payload. Behind them are data that a protocol may leave to the
    /// link's own checks.
    pub damaged_bytes: usize,
    /// How late what is late can be.
    pub late: Duration,
}

impl Weather {
    /// Everything comes, once, at once and in order.
    pub const FAIR: Weather =
        Weather { lost: 0, doubled: 0, delayed: 0, damaged: 0, damaged_bytes: 0, late: Duration::ZERO };
    /// Nothing comes.
    pub const DEAD: Weather = Weather { lost: 1000, ..Weather::FAIR };
}

/// What was done to datagrams so far, both directions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Damage {
    pub passed: u64,
    pub lost: u64,
    pub doubled: u64,
    pub delayed: u64,
    pub damaged: u64,
}

/// A generator of numbers that look random: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014, figure 16).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// True with a chance of `thousandths`.
    fn chance(&mut self, thousandths: u32) -> bool {
        self.below(1000) < u64::from(thousandths)
    }
}

/// A datagram on its way, in the order of its release.
struct Flight {
    due: Instant,
    number: u64,
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl Flight {
    fn key(&self) -> (Instant, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Flight) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Flight) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Flight) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

struct State {
    weather: Weather,
    damage: Damage,
    flights: BinaryHeap<Reverse<Flight>>,
    number: u64,
    service: SocketAddr,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    ended: AtomicBool,
    front: Arc<UdpSocket>,
    seed: u64,
}

/// A running proxy. It ends with this value.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
}

impl Proxy {
    /// Leads to a port of the loopback; in fair weather at first.
    pub fn to(service_port: u16, seed: u64) -> Proxy {
        let front = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        front.set_read_timeout(Some(LOOK)).expect("setting a deadline");
        let port = front.local_addr().expect("the socket's address").port();
        let state = State {
            weather: Weather::FAIR,
            damage: Damage::default(),
            flights: BinaryHeap::new(),
            number: 0,
            service: SocketAddr::from(([127, 0, 0, 1], service_port)),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            ended: AtomicBool::new(false),
            front: Arc::new(front),
            seed,
        });
        let (receiving, releasing) = (shared.clone(), shared.clone());
        thread::spawn(move || receiving.receive_from_clients());
        thread::spawn(move || releasing.release());
        Proxy { shared, port }
    }

    /// Where clients send to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads to another port from now on: the service has moved.
    pub fn lead_to(&self, service_port: u16) {
        self.shared.lock().service = SocketAddr::from(([127, 0, 0, 1], service_port));
    }

    /// Changes what happens from now on.
    pub fn set(&self, weather: Weather) {
        self.shared.lock().weather = weather;
    }

    /// What has happened.
    pub fn damage(&self) -> Damage {
        self.shared.lock().damage
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From clients to the service: a socket of its own for each client, so that answers find their way back.
    fn receive_from_clients(self: Arc<Shared>) {
        let mut backs: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let mut random = Random::new(self.seed);
        let mut buffer = vec![0; LONGEST];
        while !self.ended.load(Relaxed) {
            let Ok((length, client)) = self.front.recv_from(&mut buffer) else { continue };
            let back = backs.entry(client).or_insert_with(|| {
                let back = UdpSocket::bind("127.0.0.1:0").expect("a socket");
                back.set_read_timeout(Some(LOOK)).expect("setting a deadline");
                let back = Arc::new(back);
                let (shared, socket) = (self.clone(), back.clone());
                let seed = self.seed ^ u64::from(client.port()) << 32;
                thread::spawn(move || shared.receive_from_service(&socket, client, seed));
                back
            });
            let service = self.lock().service;
            self.send(&mut random, back, service, &buffer[..length]);
        }
    }

    fn receive_from_service(&self, back: &UdpSocket, client: SocketAddr, seed: u64) {
        let mut random = Random::new(!seed);
        let mut buffer = vec![0; LONGEST];
        while !self.ended.load(Relaxed) {
            if let Ok(length) = back.recv(&mut buffer) {
                self.send(&mut random, &self.front, client, &buffer[..length]);
            }
        }
    }

    /// Decides what becomes of a datagram.
    fn send(&self, random: &mut Random, socket: &Arc<UdpSocket>, to: SocketAddr, bytes: &[u8]) {
        let mut state = self.lock();
        let weather = state.weather;
        if random.chance(weather.lost) {
            state.damage.lost += 1;
            return;
        }
        let now = Instant::now();
        let late_us = u64::try_from(weather.late.as_micros()).unwrap_or(u64::MAX).max(1);
        let mut bytes = bytes.to_vec();
        let damageable = weather.damaged_bytes.min(bytes.len());
        if damageable > 0 && random.chance(weather.damaged) {
            let bit = random.below(8 * damageable as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            state.damage.damaged += 1;
        }
        let mut due = now;
        if random.chance(weather.delayed) {
            due += Duration::from_micros(random.below(late_us));
            state.damage.delayed += 1;
        }
        let mut copies = vec![due];
        if random.chance(weather.doubled) {
            copies.push(now + Duration::from_micros(random.below(late_us)));
            state.damage.doubled += 1;
        }
        for due in copies {
            state.number += 1;
            let number = state.number;
            let flight = Flight { due, number, socket: socket.clone(), to, bytes: bytes.clone() };
            state.flights.push(Reverse(flight));
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Sends each datagram when it is due.
    fn release(&self) {
        let mut state = self.lock();
        while !self.ended.load(Relaxed) {
            let now = Instant::now();
            match state.flights.peek().map(|Reverse(flight)| flight.due) {
                Some(due) if due <= now => {
                    let Some(Reverse(flight)) = state.flights.pop() else { continue };
                    state.damage.passed += 1;
                    drop(state);
                    // A service that is not there yet, or any more, is a loss like another.
                    let _ = flight.socket.send_to(&flight.bytes, flight.to);
                    state = self.lock();
                }
                Some(due) => {
                    let wait = self.changed.wait_timeout(state, due - now);
                    state = wait.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service that answers every datagram with itself.
    fn echo() -> u16 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], from);
            }
        });
        port
    }

    fn client(proxy: &Proxy) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", proxy.port())).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket
    }

    fn exchange(socket: &UdpSocket, count: u32) -> Vec<u32> {
        let mut came = Vec::new();
        let mut buffer = [0; 64];
        for number in 0..count {
            socket.send(&number.to_be_bytes()).unwrap();
        }
        while let Ok(4) = socket.recv(&mut buffer) {
            came.push(u32::from_be_bytes(buffer[..4].try_into().unwrap()));
        }
        came
    }

    #[test]
    fn fair_weather_changes_nothing() {
        let proxy = Proxy::to(echo(), 1);
        assert_eq!(exchange(&client(&proxy), 50), (0..50).collect::<Vec<_>>());
        assert_eq!(proxy.damage(), Damage { passed: 100, ..Damage::default() });
    }

    #[test]
    fn every_kind_of_weather_is_seen_and_counted() {
        let proxy = Proxy::to(echo(), 2);
        let late = Duration::from_millis(20);
        proxy.set(Weather { lost: 100, doubled: 100, delayed: 100, damaged: 100, damaged_bytes: 2, late });
        let came = exchange(&client(&proxy), 400);
        let Damage { lost, doubled, delayed, damaged, .. } = proxy.damage();
        assert!(lost > 20 && doubled > 20 && delayed > 20 && damaged > 20, "{:?}", proxy.damage());
        assert!(!came.is_sorted(), "nothing overtook anything");
        assert!(came.iter().any(|number| *number > 400), "nothing was damaged");
        proxy.set(Weather::DEAD);
        assert!(exchange(&client(&proxy), 10).is_empty());
    }
}
