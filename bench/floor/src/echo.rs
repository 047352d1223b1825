//! The bare echo: answers in the receive softirq, in batches, with one doorbell.

use alloc::sync::Arc;

use echo_wire::{HEADER_BYTES, Request};
use ingress::UdpMeta;
use kcore::frame::NetFrame;
use kcore::net::NetDevice;
use kcore::sync::SpinLock;
use netwire::UdpHeaders;
use stack::{Answers, BindError, Binding, ChecksumPolicy, Stack, UdpHandler};

/// A port that is echoed, until it is dropped.
pub struct Echo {
    _binding: Binding,
}

impl Echo {
    pub fn start(stack: &Stack, port: u16) -> Result<Self, BindError> {
        let service = Service { card: stack.card().clone(), replies: SpinLock::new(Answers::new()) };
        Ok(Self { _binding: stack.udp_bind(port, ChecksumPolicy::Ignore, Arc::new(service))? })
    }
}

struct Service {
    card: Arc<dyn NetDevice>,
    /// Of the batch that is being received.
    replies: SpinLock<Answers>,
}

impl UdpHandler for Service {
    fn datagram(&self, frame: NetFrame, meta: &UdpMeta) {
        let Some(request) = Request::parse(meta.payload(frame.bytes())) else { return };
        let headers = meta.reply_headers();
        drop(frame);
        let mut replies = self.replies.lock();
        for number in 0..request.replies {
            // No frame: the reply is lost, as it would be on a full wire.
            let Some(reply) = reply(&headers, &request, number) else { return };
            replies.push(reply, &headers);
        }
    }

    fn batch_done(&self) {
        let mut replies = core::mem::take(&mut *self.replies.lock());
        // What the card has no room for is dropped.
        self.card.transmit(replies.chain());
    }
}

fn reply(headers: &UdpHeaders, request: &Request, number: u8) -> Option<NetFrame> {
    let payload_bytes = usize::from(request.reply_bytes);
    let mut frame = NetFrame::alloc()?;
    let whole = frame.whole_mut();
    headers.emit(whole.first_chunk_mut()?, payload_bytes).ok()?;
    let payload = whole.get_mut(UdpHeaders::LEN..UdpHeaders::LEN + payload_bytes)?;
    // The frame held somebody's packet before.
    payload.fill(0);
    *payload.first_chunk_mut::<HEADER_BYTES>()? = request.reply_header(number);
    frame.set_len(UdpHeaders::LEN + payload_bytes);
    Some(frame)
}
