//! UDP in batches: one system call sends or takes many datagrams.
//!
//! At tens of thousands of requests a second on two CPUs that the emulated machine needs as well, the generator's own
//! system calls would be part of the figure.

use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg};
use rustix::net::sockopt;

/// Datagrams of one system call.
pub const BATCH: usize = 64;
/// Room for one.
const DATAGRAM_BYTES: usize = 2048;
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
    incoming: Vec<[u8; DATAGRAM_BYTES]>,
    receive_headers: MultiHeaders<SockaddrIn>,
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
        Self {
            socket,
            outgoing: Vec::new(),
            queued: 0,
            sent: 0,
            incoming: vec![[0; DATAGRAM_BYTES]; BATCH],
            receive_headers: MultiHeaders::preallocate(BATCH, None),
            send_headers: MultiHeaders::preallocate(BATCH, None),
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
            let some = &self.outgoing[self.sent..self.queued.min(self.sent + BATCH)];
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

    /// Takes the datagrams that have come, at most [`BATCH`], without waiting.
    pub fn receive(&mut self, take: impl FnMut(&[u8])) -> Result<()> {
        self.receive_some(MsgFlags::MSG_DONTWAIT)?.iter().map(|(bytes, _)| *bytes).for_each(take);
        Ok(())
    }

    /// Waits for datagrams, and says where they came from.
    pub fn wait(&mut self) -> Result<Vec<(Vec<u8>, Option<SockaddrIn>)>> {
        let some = self.receive_some(MsgFlags::MSG_WAITFORONE)?;
        Ok(some.into_iter().map(|(bytes, from)| (bytes.to_vec(), from)).collect())
    }

    fn receive_some(&mut self, flags: MsgFlags) -> Result<Vec<(&[u8], Option<SockaddrIn>)>> {
        let descriptor = self.socket.as_raw_fd();
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            self.incoming.iter_mut().map(|room| [IoSliceMut::new(room)]).collect();
        let lengths: Vec<(usize, Option<SockaddrIn>)> =
            match recvmmsg(descriptor, &mut self.receive_headers, slices.iter_mut(), flags, None) {
                Ok(results) => results.map(|result| (result.bytes, result.address)).collect(),
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => Vec::new(),
                Err(error) => return Err(error).context("receiving datagrams"),
            };
        let rooms = self.incoming.iter().zip(lengths);
        Ok(rooms.map(|(room, (bytes, from))| (&room[..bytes.min(DATAGRAM_BYTES)], from)).collect())
    }
}
