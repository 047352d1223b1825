//! A network card that does as the story says: honest, or lying.
//!
//! QEMU lets another process be the device behind a virtio card (vhost-user): it hands over the node's memory and the
//! places of the queues, and that process reads and writes the rings. Here the process is the story. Honest, the card
//! carries frames between the rings and the story's cable ([`crate::frames::Wire`]) as any card does; told to lie, it
//! returns what it was not given, or claims to have written what it had no room for. What a device may do to the node's
//! driver, which the driver's own tests show on the ring alone, is shown here on the whole node.
//!
//! The node's memory is a file that both sides have open, so it is read and written with the file's own calls.

mod memory;
mod protocol;
mod rings;

use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags};

use memory::Memory;
use protocol::Request;
use rings::Ring;

/// Feature bits (VIRTIO 1.2 sections 5.1.3 and 6).
mod feature {
    pub const MTU: u64 = 1 << 3;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// vhost-user's own: QEMU wants it to turn queues on and off.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

/// Bytes of the header before every packet (VIRTIO 1.2 section 5.1.6).
const HEADER_BYTES: usize = 12;

/// What the card can do beside what every card here can.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offer {
    pub indirect: bool,
    pub event_index: bool,
}

/// What the card does wrong, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Returns a descriptor that there is not.
    NoSuchDescriptor,
    /// Returns a descriptor in the middle of a chain.
    MiddleOfAChain,
    /// Returns a packet twice.
    Twice,
    /// Claims to have written one byte more than it was given room for.
    OneByteTooMany,
    /// Claims to have written two gigabytes.
    FarTooMuch,
    /// Claims to have written less than a header.
    LessThanAHeader,
    /// Moves its index by more packets than it has.
    IndexAhead,
    /// Moves its index back.
    IndexBack,
    /// Fills the ring of what it returns with noise.
    Noise,
    /// Returns a packet that was sent, twice.
    SentTwice,
}

impl Lie {
    pub const ALL: [Lie; 10] = [
        Lie::NoSuchDescriptor,
        Lie::MiddleOfAChain,
        Lie::Twice,
        Lie::OneByteTooMany,
        Lie::FarTooMuch,
        Lie::LessThanAHeader,
        Lie::IndexAhead,
        Lie::IndexBack,
        Lie::Noise,
        Lie::SentTwice,
    ];
}

/// The story's hold on its card. The card ends with QEMU.
#[derive(Debug)]
pub struct Card {
    /// A byte for each lie: its place in [`Lie::ALL`].
    lies: UnixStream,
    told: Receiver<Lie>,
}

impl Card {
    /// A card that QEMU will find at `socket`, between the node's rings and the datagram socket `cable`, whose other end
    /// is at `story`.
    pub(crate) fn listen(socket: &Path, offer: Offer, cable: &Path, story: &Path) -> Result<Card> {
        let _ = fs::remove_file(socket);
        let listener =
            UnixListener::bind(socket).with_context(|| format!("listening at {}", socket.display()))?;
        let cable = UnixDatagram::bind(cable).with_context(|| format!("binding {}", cable.display()))?;
        cable.set_nonblocking(true).context("setting up the cable")?;
        let (lies, to_tell) = UnixStream::pair().context("a way to tell the card to lie")?;
        let (has_told, told) = channel();
        let story = story.to_path_buf();
        thread::spawn(move || {
            let Ok((stream, _)) = listener.accept() else { return };
            let backend = Backend {
                stream,
                offer,
                cable,
                story,
                memory: Memory::default(),
                rings: [Ring::default(), Ring::default()],
                arrived: VecDeque::new(),
                to_tell,
                has_told,
                lying: None,
            };
            // It ends when QEMU does; whatever else goes wrong, the story misses its packets.
            if let Err(error) = backend.run() {
                eprintln!("the card: {error:#}");
            }
        });
        Ok(Card { lies, told })
    }

    /// Has the card lie as soon as it has something to lie about, and waits until it has.
    pub fn lie(&self, lie: Lie) {
        let place = Lie::ALL.iter().position(|other| *other == lie).expect("all lies are there") as u8;
        (&self.lies).write_all(&[place]).expect("telling the card to lie");
        let told =
            self.told.recv_timeout(Duration::from_secs(20)).expect("the card had something to lie about");
        assert_eq!(told, lie);
    }
}

struct Backend {
    stream: UnixStream,
    offer: Offer,
    cable: UnixDatagram,
    story: std::path::PathBuf,
    memory: Memory,
    rings: [Ring; 2],
    /// Frames from the story for which there was no room yet.
    arrived: VecDeque<Vec<u8>>,
    to_tell: UnixStream,
    has_told: Sender<Lie>,
    lying: Option<Lie>,
}

impl Backend {
    fn run(mut self) -> Result<()> {
        loop {
            let kicks: Vec<_> = self.rings.iter().filter_map(Ring::kick).collect();
            let mut sources = vec![
                PollFd::new(&self.stream, PollFlags::IN),
                PollFd::new(&self.to_tell, PollFlags::IN),
                PollFd::new(&self.cable, PollFlags::IN),
            ];
            sources.extend(kicks.iter().map(|kick| PollFd::new(*kick, PollFlags::IN)));
            rustix::event::poll(&mut sources, None).context("waiting")?;
            let [message, lie] = [0, 1].map(|place: usize| !sources[place].revents().is_empty());
            if message && !self.message()? {
                return Ok(());
            }
            if lie {
                let mut place = [0];
                if self.to_tell.read(&mut place).context("reading what to lie about")? == 0 {
                    return Ok(());
                }
                self.lying = Lie::ALL.get(usize::from(place[0])).copied();
            }
            self.rings.iter().for_each(Ring::drain_kick);
            self.take_arrived()?;
            if self.rings.iter().all(Ring::is_running) {
                self.transmit()?;
                self.receive()?;
            }
        }
    }

    /// Answers one message of QEMU's. `false`: it has ended.
    fn message(&mut self) -> Result<bool> {
        let Some(message) = protocol::receive(&self.stream)? else { return Ok(false) };
        let ring =
            |index: u32| usize::try_from(index).ok().filter(|index| *index < 2).context("a queue's number");
        match message.request {
            Request::GetFeatures => {
                let indirect = if self.offer.indirect { feature::INDIRECT } else { 0 };
                let event_index = if self.offer.event_index { feature::EVENT_INDEX } else { 0 };
                let always = feature::VERSION_1 | feature::MTU | feature::PROTOCOL_FEATURES;
                let features = always | indirect | event_index;
                protocol::reply(&mut self.stream, message.request, &features.to_le_bytes())?;
            }
            Request::SetFeatures => {
                let accepted = message.u64_at(0)?;
                for ring in &mut self.rings {
                    ring.event_index = accepted & feature::EVENT_INDEX != 0;
                }
            }
            Request::SetMemory => self.memory = Memory::of(&message.body, message.files)?,
            Request::SetRingSize => {
                let size = u16::try_from(message.u32_at(4)?).context("a queue's size")?;
                self.rings[ring(message.u32_at(0)?)?].size = size;
            }
            Request::SetRingAddresses => {
                let ring = &mut self.rings[ring(message.u32_at(0)?)?];
                ring.descriptors = message.u64_at(8)?;
                ring.used = message.u64_at(16)?;
                ring.available = message.u64_at(24)?;
            }
            Request::SetRingBase => {
                let base = message.u32_at(4)? as u16;
                self.rings[ring(message.u32_at(0)?)?].begin_at(base);
            }
            Request::GetRingBase => {
                let index = message.u32_at(0)?;
                let base = self.rings[ring(index)?].stop();
                let body = [index.to_le_bytes(), u32::from(base).to_le_bytes()].concat();
                protocol::reply(&mut self.stream, message.request, &body)?;
            }
            Request::SetKick | Request::SetCall => {
                // The low byte is the queue's number (vhost-user, "Vring descriptor index").
                let index = ring(message.u64_at(0)? as u32 & 0xff)?;
                let file = message.files.into_iter().next();
                let ring = &mut self.rings[index];
                if message.request == Request::SetKick { ring.set_kick(file) } else { ring.set_call(file) }
            }
            Request::GetProtocolFeatures => {
                protocol::reply(&mut self.stream, message.request, &0_u64.to_le_bytes())?;
            }
            Request::Other => {}
        }
        Ok(true)
    }

    fn take_arrived(&mut self) -> Result<()> {
        let mut buffer = [0; 65536];
        loop {
            match self.cable.recv(&mut buffer) {
                Ok(length) => self.arrived.push_back(buffer[..length].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("reading the cable"),
            }
        }
    }

    /// Takes what the node sends to the story.
    fn transmit(&mut self) -> Result<()> {
        let ring = &mut self.rings[TRANSMIT];
        while let Some(chain) = ring.take(&self.memory)? {
            if chain.iter().any(|buffer| buffer.device_writes) {
                bail!("the node sends from memory that the card is to write");
            }
            let mut frame = Vec::new();
            for buffer in &chain {
                frame.extend(self.memory.read_guest(buffer.address, buffer.bytes)?);
            }
            // Gone if the story has ended.
            let _ = self.cable.send_to(frame.get(HEADER_BYTES..).unwrap_or_default(), &self.story);
            let lying = self.lying == Some(Lie::SentTwice);
            ring.complete_times(&self.memory, if lying { 2 } else { 1 }, chain.head.into(), 0)?;
            if lying {
                return self.told();
            }
        }
        Ok(())
    }

    /// Gives the node what arrived, or a lie.
    fn receive(&mut self) -> Result<()> {
        if self.lying.is_some_and(|lie| lie != Lie::SentTwice) {
            return self.lie_about_receiving();
        }
        while let Some(frame) = self.arrived.front() {
            let ring = &mut self.rings[RECEIVE];
            let Some(chain) = ring.take(&self.memory)? else { return Ok(()) };
            if chain.iter().any(|buffer| !buffer.device_writes) {
                bail!("the node receives into memory that the card is to read");
            }
            let packet = [&[0; HEADER_BYTES][..], frame].concat();
            let written = if packet.len() <= chain.bytes() {
                let mut rest = &packet[..];
                for buffer in &chain {
                    let (now, later) = rest.split_at(rest.len().min(buffer.bytes));
                    self.memory.write_guest(buffer.address, now)?;
                    rest = later;
                }
                packet.len()
            } else {
                // As real cards do: what does not fit is not received, and its buffer is given back empty.
                0
            };
            ring.complete(&self.memory, u32::from(chain.head), written as u32)?;
            self.arrived.pop_front();
        }
        Ok(())
    }

    fn lie_about_receiving(&mut self) -> Result<()> {
        let Some(lie) = self.lying else { return Ok(()) };
        let ring = &mut self.rings[RECEIVE];
        let Some(chain) = ring.take(&self.memory)? else { return Ok(()) };
        let (memory, head, room) = (&self.memory, u32::from(chain.head), chain.bytes() as u32);
        match lie {
            Lie::NoSuchDescriptor => ring.complete(memory, 0x1_2345, room)?,
            Lie::MiddleOfAChain => ring.complete(memory, head + 1, room)?,
            Lie::Twice => ring.complete_times(memory, 2, head, 72)?,
            Lie::OneByteTooMany => ring.complete(memory, head, room + 1)?,
            Lie::FarTooMuch => ring.complete(memory, head, 0x7fff_ffff)?,
            Lie::LessThanAHeader => ring.complete(memory, head, 3)?,
            Lie::IndexAhead => ring.move_index(memory, 5000)?,
            Lie::IndexBack => ring.move_index(memory, u16::MAX)?,
            Lie::Noise => ring.fill_with_noise(memory)?,
            Lie::SentTwice => {}
        }
        self.told()
    }

    fn told(&mut self) -> Result<()> {
        match self.lying.take() {
            Some(lie) => self.has_told.send(lie).context("the story has ended"),
            None => Ok(()),
        }
    }
}
