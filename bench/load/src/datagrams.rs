//! UDP in batches: one system call sends or takes many datagrams, and what a sender gave the network as one (or the
//! network joined) arrives as one (UDP_GRO), as it always does for TCP.
//!
//! At tens of thousands of requests a second on two CPUs that the emulated machine needs as well, the generator's own
//! system calls would be part of the figure.

use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use anyhow::{Context as _, Result};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::sockopt::UdpGroSegment;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockaddrIn, recvmmsg, sendmmsg, setsockopt,
};
use rustix::net::sockopt;

/// Datagrams that one system call sends.
const SEND_BATCH: usize = 64;
/// Packets that one system call takes, each of up to 64 datagrams.
const RECEIVE_BATCH: usize = 8;
/// Room for a datagram to be sent.
const DATAGRAM_BYTES: usize = 2048;
/// Room for a packet that comes: the most that IPv4 has.
const PACKET_BYTES: usize = 1 << 16;
/// Room in the socket, either way.
const BUFFER_BYTES: usize = 4 << 20;

/// A datagram that is to be sent, and where to, if the socket has no peer.
struct Outgoing {
    bytes: Vec<u8>,
    to: Option<SockaddrIn>,
}

/// A UDP socket and what is to go out of it.
pub struct Datagrams {
    socket: UdpSocket,
    /// To be sent: those from `sent` to `queued`. The others' memory is used again.
    outgoing: Vec<Outgoing>,
    queued: usize,
    sent: usize,
    incoming: Vec<Vec<u8>>,
    send_headers: MultiHeaders<SockaddrIn>,
}

impl Datagrams {
    /// A socket that talks to one peer.
    pub fn connect(peer: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).context("making a UDP socket")?;
        socket.connect(peer).with_context(|| format!("connecting to {peer}"))?;
        Ok(Self::over(socket))
    }

    /// A socket that anybody may send to.
    pub fn listen(address: SocketAddr) -> Result<Self> {
        Ok(Self::over(UdpSocket::bind(address).with_context(|| format!("binding {address}"))?))
    }

    fn over(socket: UdpSocket) -> Self {
        // The system may grant less; then a burst may be lost, and shows as such.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES);
        let _ = sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES);
        // A system without it brings them one by one.
        let _ = setsockopt(&socket, UdpGroSegment, &true);
        Self {
            socket,
            outgoing: Vec::new(),
            queued: 0,
            sent: 0,
            incoming: vec![vec![0; PACKET_BYTES]; RECEIVE_BATCH],
            send_headers: MultiHeaders::preallocate(SEND_BATCH, None),
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Room for one more datagram to be sent, empty.
    pub fn push(&mut self, to: Option<SockaddrIn>) -> &mut Vec<u8> {
        let place = self.queued;
        self.queued += 1;
        if place == self.outgoing.len() {
            self.outgoing.push(Outgoing { bytes: Vec::with_capacity(DATAGRAM_BYTES), to });
        }
        let outgoing = &mut self.outgoing[place];
        outgoing.to = to;
        outgoing.bytes.clear();
        &mut outgoing.bytes
    }

    /// Sends what the socket takes; whether that was all.
    pub fn send(&mut self) -> Result<bool> {
        while self.sent < self.queued {
            let some = &self.outgoing[self.sent..self.queued.min(self.sent + SEND_BATCH)];
            let slices: Vec<[IoSlice<'_>; 1]> = some.iter().map(|one| [IoSlice::new(&one.bytes)]).collect();
            let addresses: Vec<Option<SockaddrIn>> = some.iter().map(|one| one.to).collect();
            let descriptor = self.socket.as_raw_fd();
            let headers = &mut self.send_headers;
            match sendmmsg(descriptor, headers, &slices, addresses, [], MsgFlags::MSG_DONTWAIT)
                .map(Iterator::count)
            {
                Ok(0) | Err(Errno::EAGAIN) => return Ok(false),
                Ok(count) => self.sent += count,
                // The second is the answer to an earlier datagram; this one was not sent.
                Err(Errno::EINTR | Errno::ECONNREFUSED) => {}
                // A full queue on the way is a loss like any other.
                Err(Errno::ENOBUFS) => self.sent += 1,
                Err(error) => return Err(error).context("sending a datagram"),
            }
        }
        (self.sent, self.queued) = (0, 0);
        Ok(true)
    }

    /// Takes datagrams that have come, as many as one system call brings, without waiting.
    pub fn receive(&mut self, mut take: impl FnMut(&[u8])) -> Result<()> {
        self.receive_some(MsgFlags::MSG_DONTWAIT, |datagram, _| take(datagram))
    }

    /// Waits for datagrams, and says where they came from.
    pub fn wait(&mut self) -> Result<Vec<(Vec<u8>, Option<SockaddrIn>)>> {
        let mut some = Vec::new();
        self.receive_some(MsgFlags::MSG_WAITFORONE, |datagram, from| some.push((datagram.to_vec(), from)))?;
        Ok(some)
    }

    fn receive_some(
        &mut self,
        flags: MsgFlags,
        mut take: impl FnMut(&[u8], Option<SockaddrIn>),
    ) -> Result<()> {
        let descriptor = self.socket.as_raw_fd();
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            self.incoming.iter_mut().map(|room| [IoSliceMut::new(room)]).collect();
        // Not kept: the system writes into them how much it told, and nix (0.32) never says again that there is room.
        let mut headers = MultiHeaders::preallocate(RECEIVE_BATCH, Some(cmsg_space!(i32)));
        let packets: Vec<(usize, usize, Option<SockaddrIn>)> =
            match recvmmsg(descriptor, &mut headers, slices.iter_mut(), flags, None) {
                Ok(results) => {
                    results.map(|result| (result.bytes, datagram_bytes(&result), result.address)).collect()
                }
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => Vec::new(),
                Err(error) => return Err(error).context("receiving datagrams"),
            };
        for (room, (bytes, datagram_bytes, from)) in self.incoming.iter().zip(packets) {
            room[..bytes.min(PACKET_BYTES)].chunks(datagram_bytes).for_each(|datagram| take(datagram, from));
        }
        Ok(())
    }
}

/// The length of each datagram of a packet but its last.
fn datagram_bytes(packet: &RecvMsg<'_, '_, SockaddrIn>) -> usize {
    let told = packet.cmsgs().into_iter().flatten().find_map(|message| match message {
        ControlMessageOwned::UdpGroSegments(bytes) => usize::try_from(bytes).ok(),
        _ => None,
    });
    told.unwrap_or(packet.bytes).max(1)
}
