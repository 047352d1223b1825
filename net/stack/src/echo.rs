//! UDP echo (RFC 862): every datagram goes back where it came from, in the frames that brought it.
//!
//! The least that a server on this node can do, and so the measure of what any other costs; and the
//! way to see a link whole, for what comes back has been received and sent. Nobody starts it but the
//! person at the shell. Its own port is never answered: two echoes would keep each other busy for ever.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ingress::UdpMeta;
use kcore::frame::NetFrame;
use kcore::net::NetDevice;
use kcore::sync::SpinLock;
use netwire::UdpHeaders;

use crate::answers::Answers;
use crate::handlers::{BindError, Binding, ChecksumPolicy, UdpHandler};
use crate::stack::Stack;

/// The echo of a stack, while there is one.
pub(crate) struct Echo {
    pub binding: Binding,
    service: Arc<Service>,
}

struct Service {
    card: Arc<dyn NetDevice>,
    /// The answers of the batch that is being received.
    answers: SpinLock<Answers>,
    answered: AtomicU64,
    dropped: AtomicU64,
}

impl Service {
    /// Turns a datagram into its answer.
    fn turn(mut frame: NetFrame, meta: &UdpMeta) -> Option<(NetFrame, UdpHeaders)> {
        // Link padding behind a short datagram stays here.
        let in_first_bytes = meta.payload(frame.bytes()).len();
        let headers = meta.reply_headers();
        if headers.destination.port() == headers.source.port() || meta.payload_offset != UdpHeaders::LEN {
            return None;
        }
        headers.emit(frame.bytes_mut().first_chunk_mut()?, meta.payload_bytes).ok()?;
        frame.set_len(UdpHeaders::LEN + in_first_bytes);
        Some((frame, headers))
    }
}

impl UdpHandler for Service {
    fn datagram(&self, frame: NetFrame, meta: &UdpMeta) {
        match Service::turn(frame, meta) {
            Some((answer, headers)) => self.answers.lock().push(answer, &headers),
            None => {
                self.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    fn batch_done(&self) {
        let mut answers = core::mem::take(&mut *self.answers.lock());
        if answers.is_empty() {
            return;
        }
        let taken = self.card.transmit(answers.chain());
        self.answered.fetch_add(taken as u64, Relaxed);
        self.dropped.fetch_add(answers.len() as u64, Relaxed);
    }
}

/// What an echo did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EchoState {
    pub port: u16,
    /// Datagrams that the card took back.
    pub answered: u64,
    /// Datagrams from the echo's own port, or for which the card had no room.
    pub dropped: u64,
}

impl Stack {
    /// Echoes the datagrams of a UDP port, instead of those of another where it did so.
    pub fn start_echo(&self, port: u16) -> Result<(), BindError> {
        let _ = self.stop_echo();
        let service = Arc::new(Service {
            card: self.card().clone(),
            answers: SpinLock::new(Answers::new()),
            answered: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        let binding = self.udp_bind(port, ChecksumPolicy::Ignore, service.clone())?;
        let other = self.echo.lock().replace(Echo { binding, service });
        // Its port is unbound without the lock: that may take a moment.
        drop(other);
        Ok(())
    }

    /// Ends the echo, and says what it did.
    pub fn stop_echo(&self) -> Option<EchoState> {
        let state = self.echo_state();
        let echo = self.echo.lock().take();
        drop(echo);
        state
    }

    /// What the echo does, if there is one.
    pub fn echo_state(&self) -> Option<EchoState> {
        self.echo.lock().as_ref().map(|echo| EchoState {
            port: echo.binding.port(),
            answered: echo.service.answered.load(Relaxed),
            dropped: echo.service.dropped.load(Relaxed),
        })
    }
}
