//! The device behind the two queues.

use crate::chain::Chain;
use crate::fault::QueueFault;
use crate::features::Features;
use crate::function::{DeviceKind, DeviceModel, Function};
use crate::net::header::{HEADER_BYTES, PLAIN_RECEIVE, check_transmit};
use crate::net::moderation::{DEFAULT_WINDOW_NS, InterruptTiming, RxModeration};
use crate::net::{FrameSink, FrameSource, RECEIVE_QUEUE, TRANSMIT_QUEUE};
use crate::queue::Virtqueue;
use crate::ram::GuestRam;

/// Entries of each queue.
const QUEUE_SIZE: u16 = 256;

const ETHERNET_HEADER_BYTES: usize = 14;
const VLAN_TAG_BYTES: usize = 4;
/// EtherTypes of a VLAN tag (IEEE 802.1Q): customer and service tags.
const VLAN_TYPES: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// VIRTIO_NET_S_LINK_UP (5.1.4).
const STATUS_LINK_UP: u16 = 1;

/// What the guest is told about its network card.
#[derive(Clone, Copy, Debug)]
pub struct NetConfig {
    pub mac: [u8; 6],
    /// Largest payload of a frame, without the Ethernet header; 68 at least (5.1.4.1).
    pub mtu: u16,
    /// Receive moderation, see [`RxModeration`].
    pub window_ns: u64,
}

impl NetConfig {
    /// A card with this address, the Ethernet MTU and the default moderation.
    pub const fn new(mac: [u8; 6]) -> Self {
        Self { mac, mtu: 1500, window_ns: DEFAULT_WINDOW_NS }
    }
}

/// What became of the frames, as the guest would count them: transmit is what it sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    pub transmitted_frames: u64,
    pub transmitted_bytes: u64,
    /// Sends shorter than the virtio header and an Ethernet header.
    pub transmit_undersize: u64,
    /// Sends longer than the MTU allows.
    pub transmit_oversize: u64,
    /// Sends that ask for an offload which was not negotiated.
    pub transmit_offload: u64,
    /// Sends for which the node had no frame.
    pub transmit_no_memory: u64,
    pub received_frames: u64,
    pub received_bytes: u64,
    /// Frames from the switch shorter than an Ethernet header.
    pub receive_undersize: u64,
    /// Frames from the switch longer than the MTU allows.
    pub receive_oversize: u64,
    /// Frames dropped because the guest's next buffer was too small (5.1.6.3.1 forbids it such).
    pub receive_small_buffer: u64,
    /// Times that a frame found no buffer of the guest's.
    pub receive_starved: u64,
    pub receive_interrupts: u64,
    /// Receive interrupts that waited for a window's end.
    pub receive_interrupts_moderated: u64,
    pub transmit_interrupts: u64,
}

/// Outcome of [`NetFunction::transmit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Transmitted {
    /// Chains handled, dropped ones among them.
    pub chains: u16,
    /// The queue holds more, and no notification will come for it: call again, next round.
    pub more: bool,
}

/// Outcome of [`NetFunction::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Received {
    /// Frames taken from the source, dropped ones among them.
    pub frames: u16,
    /// The source has more and the guest may have buffers: call again, next round.
    pub more: bool,
    /// The guest has no buffer for the source's next frame; it will notify when it has.
    pub starved: bool,
    /// The moderation window or the due time has moved. If another CPU than this does the device
    /// work, it must be woken: it sleeps, or runs the guest, by times that are no longer true.
    pub window_moved: bool,
}

/// The model: what is between the registers and the frames.
#[derive(Debug)]
pub struct Net {
    config: NetConfig,
    link_up: bool,
    moderation: RxModeration,
    chain: Chain,
    counters: NetCounters,
}

impl Net {
    pub fn new(config: NetConfig) -> Self {
        Self {
            config,
            link_up: true,
            moderation: RxModeration::new(config.window_ns),
            chain: Chain::with_room_for(QUEUE_SIZE),
            counters: NetCounters::default(),
        }
    }

    pub fn config(&self) -> &NetConfig {
        &self.config
    }

    pub fn counters(&self) -> NetCounters {
        self.counters
    }

    /// Whether a frame of this length can be right, tagged or not.
    fn frame_fits(&self, frame: &[u8]) -> bool {
        let plain_bytes = ETHERNET_HEADER_BYTES + usize::from(self.config.mtu);
        let tagged = || frame.get(12..14).is_some_and(|kind| VLAN_TYPES.iter().any(|t| t == kind));
        frame.len() <= plain_bytes || (frame.len() <= plain_bytes + VLAN_TAG_BYTES && tagged())
    }

    /// Copies one send out of the chain, or counts why not.
    fn send_one<R: GuestRam + ?Sized, S: FrameSink + ?Sized>(
        &mut self,
        ram: &R,
        sink: &mut S,
    ) -> Result<(), QueueFault> {
        let sent_bytes = self.chain.readable_bytes() as usize;
        let Some(frame_bytes) =
            sent_bytes.checked_sub(HEADER_BYTES).filter(|&bytes| bytes >= ETHERNET_HEADER_BYTES)
        else {
            self.counters.transmit_undersize += 1;
            return Ok(());
        };
        let most_bytes = ETHERNET_HEADER_BYTES + usize::from(self.config.mtu) + VLAN_TAG_BYTES;
        if frame_bytes > most_bytes {
            self.counters.transmit_oversize += 1;
            return Ok(());
        }
        let mut reader = self.chain.reader();
        let mut header = [0; HEADER_BYTES];
        reader.read(ram, &mut header)?;
        if check_transmit(&header).is_err() {
            self.counters.transmit_offload += 1;
            return Ok(());
        }
        let Some(buffer) = sink.reserve(frame_bytes).and_then(|room| room.get_mut(..frame_bytes)) else {
            self.counters.transmit_no_memory += 1;
            return Ok(());
        };
        reader.read(ram, buffer)?;
        // Only the copy can be judged: what the guest's memory says may change.
        if !self.frame_fits(buffer) {
            self.counters.transmit_oversize += 1;
            return Ok(());
        }
        sink.commit();
        self.counters.transmitted_frames += 1;
        self.counters.transmitted_bytes += frame_bytes as u64;
        Ok(())
    }

    fn transmit<R: GuestRam + ?Sized, S: FrameSink + ?Sized>(
        &mut self,
        queue: &mut Virtqueue,
        ram: &R,
        sink: &mut S,
    ) -> Result<(Transmitted, bool), QueueFault> {
        queue.suppress_notify(ram)?;
        let mut chains = 0;
        while chains < queue.size() && queue.pop(ram, &mut self.chain)? {
            self.send_one(ram, sink)?;
            queue.add_used(ram, self.chain.head(), 0)?;
            chains += 1;
        }
        queue.publish_used(ram)?;
        let interrupt = queue.driver_wants_interrupt(ram)?;
        queue.settle_interrupt();
        self.counters.transmit_interrupts += u64::from(interrupt);
        // With the budget spent, notifications stay off: the caller comes back anyway.
        let more = chains == queue.size() || queue.request_notify(ram)?;
        Ok((Transmitted { chains, more }, interrupt))
    }

    /// Puts the frame into the chain last taken and tells the bytes written.
    fn deliver<R: GuestRam + ?Sized>(&mut self, ram: &R, frame: &[u8]) -> Result<u32, QueueFault> {
        let needed_bytes = HEADER_BYTES + frame.len();
        if (self.chain.writable_bytes() as usize) < needed_bytes {
            // The buffer goes back empty, so that the driver makes progress.
            self.counters.receive_small_buffer += 1;
            return Ok(0);
        }
        let mut writer = self.chain.writer();
        writer.write(ram, &PLAIN_RECEIVE)?;
        writer.write(ram, frame)?;
        self.counters.received_frames += 1;
        self.counters.received_bytes += frame.len() as u64;
        Ok(needed_bytes as u32) // at most the MTU and some headers
    }

    fn receive<R: GuestRam + ?Sized, F: FrameSource + ?Sized>(
        &mut self,
        queue: &mut Virtqueue,
        ram: &R,
        source: &mut F,
        now_ns: u64,
    ) -> Result<(Received, bool), QueueFault> {
        let mut outcome = Received::default();
        while outcome.frames < queue.size() {
            let Some(frame) = source.peek() else { break };
            if frame.len() < ETHERNET_HEADER_BYTES {
                self.counters.receive_undersize += 1;
            } else if !self.frame_fits(frame) {
                self.counters.receive_oversize += 1;
            } else if queue.pop(ram, &mut self.chain)? {
                let written_bytes = self.deliver(ram, frame)?;
                queue.add_used(ram, self.chain.head(), written_bytes)?;
            } else {
                self.counters.receive_starved += 1;
                outcome.starved = true;
                break;
            }
            source.consume();
            outcome.frames += 1;
        }
        queue.publish_used(ram)?;
        if outcome.starved {
            // Wanted only now: a driver that refills in time need never exit for it. Buffers that
            // came before it could see the wish are ours to notice.
            outcome.starved = !queue.request_notify(ram)?;
            outcome.more = !outcome.starved;
        } else {
            queue.suppress_notify(ram)?;
            outcome.more = outcome.frames == queue.size() && source.peek().is_some();
        }
        let times = |net: &Self| (net.moderation.window_end_ns(), net.moderation.due_ns());
        let before = times(self);
        let interrupt = self.moderate(queue, ram, now_ns)?;
        outcome.window_moved = times(self) != before;
        Ok((outcome, interrupt))
    }

    /// Settles whether to interrupt for the frames published by now.
    fn moderate<R: GuestRam + ?Sized>(
        &mut self,
        queue: &mut Virtqueue,
        ram: &R,
        now_ns: u64,
    ) -> Result<bool, QueueFault> {
        let was_owed = self.moderation.is_owed();
        if was_owed && !self.moderation.is_due(now_ns) {
            return Ok(false); // these frames join the interrupt that is owed
        }
        let wanted = queue.driver_wants_interrupt(ram)?;
        if wanted && matches!(self.moderation.request(now_ns), InterruptTiming::At(_)) {
            return Ok(false);
        }
        queue.settle_interrupt();
        self.moderation.settle(now_ns, wanted);
        self.counters.receive_interrupts += u64::from(wanted);
        self.counters.receive_interrupts_moderated += u64::from(wanted && was_owed);
        Ok(wanted)
    }
}

impl DeviceModel for Net {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Net
    }

    fn features(&self) -> Features {
        Features::NET_MAC | Features::NET_MTU | Features::NET_STATUS
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE, QUEUE_SIZE]
    }

    /// struct virtio_net_config (5.1.4), up to the MTU.
    fn read_config(&self, offset: u32, into: &mut [u8]) {
        let status = if self.link_up { STATUS_LINK_UP } else { 0 };
        let most_queue_pairs: u16 = 1;
        let mut image = [0; 12];
        image[..6].copy_from_slice(&self.config.mac);
        image[6..8].copy_from_slice(&status.to_le_bytes());
        image[8..10].copy_from_slice(&most_queue_pairs.to_le_bytes());
        image[10..].copy_from_slice(&self.config.mtu.to_le_bytes());
        let from = image.iter().skip(offset as usize);
        into.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }

    fn stop(&mut self) {
        self.moderation.forget();
    }
}

/// A virtio network card on PCI.
pub type NetFunction = Function<Net>;

impl NetFunction {
    /// A card with INTx and `msix_vectors` MSI-X vectors.
    pub fn net(config: NetConfig, msix_vectors: u16) -> Self {
        Self::new(Net::new(config), msix_vectors)
    }

    /// Takes what the guest has to send. Call on a notification of [`TRANSMIT_QUEUE`], on
    /// [`crate::Event::Started`], and again while there is `more`.
    pub fn transmit<R: GuestRam + ?Sized, S: FrameSink + ?Sized>(
        &mut self,
        ram: &R,
        sink: &mut S,
    ) -> Transmitted {
        let Some((queue, net)) = self.live_queue(TRANSMIT_QUEUE) else {
            return Transmitted::default();
        };
        match net.transmit(queue, ram, sink) {
            Ok((transmitted, interrupt)) => {
                if interrupt {
                    self.interrupt(TRANSMIT_QUEUE);
                }
                transmitted
            }
            Err(fault) => {
                self.fail(TRANSMIT_QUEUE, fault);
                Transmitted::default()
            }
        }
    }

    /// Gives the guest frames. Call when the source has some, on a notification of
    /// [`RECEIVE_QUEUE`], at [`Self::due_ns`], and again while there is `more`.
    pub fn receive<R: GuestRam + ?Sized, F: FrameSource + ?Sized>(
        &mut self,
        ram: &R,
        source: &mut F,
        now_ns: u64,
    ) -> Received {
        let Some((queue, net)) = self.live_queue(RECEIVE_QUEUE) else {
            return Received::default();
        };
        match net.receive(queue, ram, source, now_ns) {
            Ok((received, interrupt)) => {
                if interrupt {
                    self.interrupt(RECEIVE_QUEUE);
                }
                received
            }
            Err(fault) => {
                self.fail(RECEIVE_QUEUE, fault);
                Received::default()
            }
        }
    }

    /// When an interrupt that is owed falls due: call [`Self::receive`] then, with whatever the
    /// source has or has not.
    pub fn due_ns(&self) -> Option<u64> {
        self.model.moderation.due_ns()
    }

    /// When the moderation window ends, for [`crate::net::frame_wakes`].
    pub fn window_end_ns(&self) -> u64 {
        self.model.moderation.window_end_ns()
    }

    /// Plugs the cable in or out; the driver is told by a configuration interrupt.
    pub fn set_link(&mut self, up: bool) {
        if self.model.link_up != up {
            self.model.link_up = up;
            self.registers.config_changed();
        }
    }

    pub fn counters(&self) -> NetCounters {
        self.model.counters()
    }
}
