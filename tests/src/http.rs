//! As much of HTTP as a story needs to fetch a page.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// Fetches a page from a port of the loopback: the status line and the body.
pub fn get(port: u16, path: &str) -> Result<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).context("connecting")?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).context("setting a deadline")?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .context("asking")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("reading the answer")?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.with_context(|| format!("no end of the header in {} bytes", answer.len()))?;
    let body = answer.split_off(end + 4);
    let header = String::from_utf8_lossy(&answer).into_owned();
    let status = header.lines().next().unwrap_or_default().to_owned();
    ensure!(status.starts_with("HTTP/"), "no status line but {status:?}");
    Ok((status, body))
}
