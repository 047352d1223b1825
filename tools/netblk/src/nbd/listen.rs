//! Where clients come in.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::{Export, Outcome, negotiate, serve};
use crate::error::Error;

/// Where to listen: an address and port, or the path of a UNIX socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// `127.0.0.1:10809`
    Tcp(SocketAddr),
    /// `unix:/run/disk.sock`
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("the path is missing".to_owned())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let mut addresses = text
            .to_socket_addrs()
            .map_err(|error| format!("{error}; ADDRESS:PORT or unix:PATH is needed"))?;
        addresses.next().map(Self::Tcp).ok_or_else(|| "it has no address".to_owned())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "nbd://{address}"),
            Self::Unix(path) => write!(f, "nbd+unix:///?socket={}", path.display()),
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    fn open(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Listen::Unix(path) => {
                let listener = bind(path)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener, path.clone()))
            }
        }
    }

    /// The address, with the port that a port 0 became.
    fn address(&self) -> io::Result<Listen> {
        Ok(match self {
            Self::Tcp(listener) => Listen::Tcp(listener.local_addr()?),
            Self::Unix(_, path) => Listen::Unix(path.clone()),
        })
    }

    fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), peer.to_string()))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok((Stream::Unix(stream), "the local socket".to_owned()))
            }
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// Binds a UNIX socket. One that a killed process left behind refuses connections, and is taken over.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            match UnixStream::connect(path) {
                Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {}
                _ => return Err(error),
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Stream {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// How long a read may wait; a write never waits longer than [`SLOWEST`].
    fn set_patience(&self, read: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(Some(SLOWEST))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(Some(SLOWEST))
            }
        }
    }

    /// Ends the connection, whoever else has a handle of it.
    fn close(&self) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn stop_reading(&self) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Read),
            Self::Unix(stream) => stream.shutdown(Shutdown::Read),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A client that takes so long to say what it wants, or to take what it asked for, is given up: it holds a place, and
/// the end of the bridge would wait for it.
const SLOWEST: Duration = Duration::from_secs(30);

/// Connections at once. More are closed as they come: each may hold [`super::MOST_BYTES`] several times over.
const MOST_CONNECTIONS: usize = 64;

/// Serves clients until `stop` is readable, as a signal makes it; then what they asked is done, and answered.
///
/// # Errors
/// If it cannot listen there.
pub fn run(
    listen: &Listen,
    export: &Export,
    stop: BorrowedFd<'_>,
    ready: impl FnOnce(&Listen),
    log: impl Fn(String) + Send + Clone + 'static,
) -> Result<(), Error> {
    let listening = || format!("listening at {listen}");
    let listener = Listener::open(listen).map_err(Error::local(listening()))?;
    ready(&listener.address().map_err(Error::local(listening()))?);
    let mut connections: Vec<(Stream, thread::JoinHandle<()>)> = Vec::new();
    loop {
        let mut wanted = [
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        match poll(&mut wanted, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(Error::local("waiting for clients")(error.into())),
        }
        if !wanted[0].revents().is_empty() {
            break;
        }
        connections.retain(|(_, thread)| !thread.is_finished());
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {
                continue;
            }
            Err(error) => return Err(Error::local("taking in a client")(error)),
        };
        if connections.len() >= MOST_CONNECTIONS {
            log(format!("{peer}: sent away, {MOST_CONNECTIONS} are here already"));
            continue;
        }
        let Ok(handle) = stream.try_clone() else { continue };
        let (export, log) = (export.clone(), log.clone());
        connections.push((handle, thread::spawn(move || log(connection(stream, &peer, &export)))));
    }
    // All first, so that they end side by side.
    for (stream, _) in &connections {
        stream.stop_reading();
    }
    for (_, thread) in connections {
        let _ = thread.join();
    }
    Ok(())
}

/// One client, to its end; in a line.
fn connection(mut stream: Stream, peer: &str, export: &Export) -> String {
    let told = converse(&mut stream, peer, export);
    stream.close();
    told
}

fn converse(stream: &mut Stream, peer: &str, export: &Export) -> String {
    let negotiated = stream.set_patience(Some(SLOWEST)).and_then(|()| negotiate(stream, export));
    // Between requests a client may be silent for as long as it likes.
    match negotiated.and_then(|outcome| stream.set_patience(None).map(|()| outcome)) {
        Ok(Outcome::Closed) => format!("{peer}: looked, and went"),
        Ok(Outcome::Transmission(style)) => {
            let writer = match stream.try_clone() {
                Ok(writer) => writer,
                Err(error) => return format!("{peer}: {error}"),
            };
            let (served, result) = serve(stream, writer, export, style);
            let end = result.map_or_else(|error| format!(", ended by: {error}"), |()| String::new());
            format!(
                "{peer}: {} requests, {} bytes read, {} written{end}",
                served.requests, served.read_bytes, served.written_bytes
            )
        }
        Err(error) => format!("{peer}: {error}"),
    }
}
