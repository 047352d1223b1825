//! TCP without waiting: bytes to be sent, bytes that have come.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// How much one call takes from the socket.
const RECEIVE_BYTES: usize = 256 << 10;
/// While a connection is made, and until the first answers: a busy host lets an emulated machine wait, too.
const PATIENCE: Duration = Duration::from_secs(15);

/// A connection.
pub struct Stream {
    socket: TcpStream,
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    /// What has come and was not taken lies between these in `incoming`.
    taken: usize,
    end: usize,
}

impl Stream {
    /// Connects, and waits in reads and writes until [`Stream::stop_waiting`].
    pub fn connect(server: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect_timeout(&server, PATIENCE)
            .with_context(|| format!("connecting to {server}"))?;
        // Small requests at once, as every client of a block service does.
        socket.set_nodelay(true).context("setting TCP_NODELAY")?;
        socket.set_read_timeout(Some(PATIENCE)).context("setting a time-out")?;
        let incoming = vec![0; RECEIVE_BYTES];
        Ok(Self { socket, outgoing: Vec::new(), sent: 0, incoming, taken: 0, end: 0 })
    }

    /// Sends bytes and waits until they are gone.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.socket.write_all(bytes).context("writing to the server")
    }

    /// Waits for exactly so many bytes.
    pub fn read<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes).context("reading from the server")?;
        Ok(bytes)
    }

    /// The same for a length that the server tells; one that is unheard of is refused.
    pub fn read_some(&mut self, bytes: usize) -> Result<Vec<u8>> {
        if bytes > 64 << 10 {
            bail!("the server announces {bytes} bytes");
        }
        let mut buffer = vec![0; bytes];
        self.socket.read_exact(&mut buffer).context("reading from the server")?;
        Ok(buffer)
    }

    /// From here on [`Stream::send`] and [`Stream::receive`] are used.
    pub fn stop_waiting(&mut self) -> Result<()> {
        self.socket.set_nonblocking(true).context("making the socket not wait")
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What is to be sent; append to it.
    pub fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Sends what the socket takes; whether that was all.
    pub fn send(&mut self) -> Result<bool> {
        while self.sent < self.outgoing.len() {
            match self.socket.write(&self.outgoing[self.sent..]) {
                Ok(0) => bail!("the server has closed the connection"),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("writing to the server"),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Takes what has come from the socket, once.
    pub fn receive(&mut self) -> Result<()> {
        self.incoming.copy_within(self.taken..self.end, 0);
        (self.taken, self.end) = (0, self.end - self.taken);
        match self.socket.read(&mut self.incoming[self.end..]) {
            Ok(0) => bail!("the server has closed the connection"),
            Ok(bytes) => self.end += bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).context("reading from the server"),
        }
        Ok(())
    }

    /// The next `N` bytes, if they have come; they stay.
    pub fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        self.incoming[self.taken..self.end].first_chunk().copied()
    }

    /// Goes past at most so many bytes of those that have come; how many.
    pub fn skip(&mut self, bytes: usize) -> usize {
        let bytes = bytes.min(self.end - self.taken);
        self.taken += bytes;
        bytes
    }
}
