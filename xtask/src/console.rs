//! The node's serial console, from the outside.
//!
//! What comes is a byte stream for a terminal: prompts that are redrawn, lines that are wiped and written again. The
//! reader turns it into lines as a person would see them, and waits for them with a deadline; nothing here sleeps or
//! polls for a change.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use announce::PROMPT;
use anyhow::{Context as _, Result, bail};

/// A connection to the console.
#[derive(Debug)]
pub struct Console {
    stream: UnixStream,
    /// Bytes of the line that is not ended yet.
    partial: Vec<u8>,
    /// Lines that were read and not taken.
    lines: std::collections::VecDeque<String>,
    /// Everything that came, as lines: what a failure shows.
    transcript: Vec<String>,
    ended: bool,
}

/// Why waiting ended without what was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    More,
    Deadline,
    Ended,
}

impl Console {
    /// Connects to the console of a QEMU that was just started, as soon as its socket is there. `ended` tells whether
    /// QEMU has given up.
    pub fn connect(
        path: &Path,
        mut ended: impl FnMut() -> Result<Option<ExitStatus>>,
        patience: Duration,
    ) -> Result<Console> {
        let deadline = Instant::now() + patience;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Ok(Self::over(stream)),
                Err(error) => {
                    if let Some(status) = ended()? {
                        bail!("QEMU ended with {status} before the machine started");
                    }
                    if Instant::now() >= deadline {
                        return Err(error).with_context(|| format!("connecting to {}", path.display()));
                    }
                    // Before the socket is there, there is nothing to wait on; this lasts some milliseconds.
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    /// Takes a connection that is made.
    pub fn over(stream: UnixStream) -> Console {
        Console {
            stream,
            partial: Vec::new(),
            lines: Default::default(),
            transcript: Vec::new(),
            ended: false,
        }
    }

    /// The socket, and what stands in the last line, for whoever takes the console over.
    pub fn into_parts(self) -> (UnixStream, Vec<u8>) {
        (self.stream, self.partial)
    }

    /// Everything that has come so far.
    pub fn transcript(&self) -> String {
        let mut text = self.transcript.join("\n");
        text.push('\n');
        text.push_str(&visible(&self.partial));
        text
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("writing to the console")
    }

    /// Takes lines until `wanted` has an answer for one.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        deadline: Instant,
        mut wanted: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        loop {
            while let Some(line) = self.lines.pop_front() {
                if let Some(answer) = wanted(&line) {
                    return Ok(answer);
                }
            }
            self.more_or_fail(what, deadline)?;
        }
    }

    /// The next line, or `None` at the deadline.
    pub fn next_line(&mut self, deadline: Instant) -> Result<Option<String>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(Some(line));
            }
            match self.read_more(deadline)? {
                Wait::More => {}
                Wait::Deadline => return Ok(None),
                Wait::Ended => bail!("the console ended\n{}", self.tail()),
            }
        }
    }

    /// Waits until a line contains `text`, and returns the line, which has ended by then.
    pub fn expect(&mut self, text: &str, deadline: Instant) -> Result<String> {
        self.wait_for(&format!("{text:?}"), deadline, |line| line.contains(text).then(|| line.to_owned()))
    }

    /// Waits for the shell's prompt with nothing behind it.
    pub fn expect_prompt(&mut self, deadline: Instant) -> Result<()> {
        while visible(&self.partial) != PROMPT {
            self.more_or_fail("the shell's prompt", deadline)?;
        }
        Ok(())
    }

    /// Gives the shell a command at its prompt, and returns the lines that it answers.
    pub fn command(&mut self, command: &str, deadline: Instant) -> Result<Vec<String>> {
        self.expect_prompt(deadline)?;
        self.lines.clear();
        self.send(command.as_bytes())?;
        self.send(b"\r")?;
        let echo = format!("{PROMPT}{command}");
        self.wait_for(&format!("the echo of {command:?}"), deadline, |line| {
            (line.trim_end() == echo.trim_end()).then_some(())
        })?;
        self.expect_prompt(deadline)?;
        Ok(self.lines.drain(..).collect())
    }

    /// Waits for the console's end: the machine is off.
    pub fn expect_end(&mut self, deadline: Instant) -> Result<()> {
        loop {
            match self.read_more(deadline)? {
                Wait::More => {}
                Wait::Ended => return Ok(()),
                Wait::Deadline => bail!("the machine did not end\n{}", self.tail()),
            }
        }
    }

    fn more_or_fail(&mut self, what: &str, deadline: Instant) -> Result<()> {
        match self.read_more(deadline)? {
            Wait::More => Ok(()),
            Wait::Deadline => bail!("waited in vain for {what}\n{}", self.tail()),
            Wait::Ended => bail!("the console ended while waiting for {what}\n{}", self.tail()),
        }
    }

    /// The last lines, for an error.
    fn tail(&self) -> String {
        const LINES: usize = 40;
        let from = self.transcript.len().saturating_sub(LINES);
        let mut text = String::from("the console's last lines:\n");
        for line in &self.transcript[from..] {
            text.push_str("    | ");
            text.push_str(line);
            text.push('\n');
        }
        text.push_str("    | ");
        text.push_str(&visible(&self.partial));
        text
    }

    fn read_more(&mut self, deadline: Instant) -> Result<Wait> {
        if self.ended {
            return Ok(Wait::Ended);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Wait::Deadline);
        }
        self.stream.set_read_timeout(Some(left)).context("setting a deadline")?;
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                self.ended = true;
                Ok(Wait::Ended)
            }
            Ok(length) => {
                self.take(&buffer[..length]);
                Ok(Wait::More)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(Wait::Deadline),
                ErrorKind::Interrupted => Ok(Wait::More),
                ErrorKind::ConnectionReset => {
                    self.ended = true;
                    Ok(Wait::Ended)
                }
                _ => Err(error).context("reading the console"),
            },
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                let line = visible(&self.partial);
                self.partial.clear();
                self.transcript.push(line.clone());
                self.lines.push_back(line);
            } else {
                self.partial.push(*byte);
            }
        }
    }
}

/// What a terminal's row shows after these bytes: carriage returns go back, sequences that erase erase, others are
/// left out.
fn visible(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut row: Vec<char> = Vec::new();
    let mut column = 0_usize;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\r' => column = 0,
            '\x08' => column = column.saturating_sub(1),
            '\x1b' => {
                if letters.next() != Some('[') {
                    continue;
                }
                let mut number = 0_usize;
                let end = loop {
                    match letters.next() {
                        Some(digit @ '0'..='9') => {
                            number = number.saturating_mul(10).saturating_add(digit as usize - '0' as usize);
                        }
                        Some('\x20'..='\x3f') => {}
                        end => break end,
                    }
                };
                match end {
                    Some('K') => row.truncate(column),
                    Some('C') => column = column.saturating_add(number.max(1)),
                    Some('D') => column = column.saturating_sub(number.max(1)),
                    Some('J') => row.clear(),
                    Some('H') => column = 0,
                    _ => {}
                }
                column = column.min(row.len());
            }
            letter if letter.is_control() => {}
            letter => {
                if column < row.len() {
                    row[column] = letter;
                } else {
                    row.push(letter);
                }
                column += 1;
            }
        }
    }
    row.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_what_a_terminal_shows() {
        assert_eq!(visible(b"nos> hv\r\x1b[Knos> help"), "nos> help");
        assert_eq!(visible(b"\x1b[32mgreen\x1b[0m"), "green");
        assert_eq!(visible(b"abc\x1b[2DX"), "aXc");
        assert_eq!(visible(b"abc\rXY"), "XYc");
        assert_eq!(visible(b"abc\r\x1b[Kx"), "x");
        assert_eq!(visible(b"\x1b"), "");
        assert_eq!(visible(b"\x1b[5"), "");
    }

    fn pair() -> (Console, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Console::over(ours), theirs)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn a_command_is_answered_between_its_echo_and_the_prompt() {
        let (mut console, mut node) = pair();
        let shell = std::thread::spawn(move || {
            node.write_all(b"booting\r\nnos> ").unwrap();
            let mut command = [0; 3];
            node.read_exact(&mut command).unwrap();
            assert_eq!(&command, b"ps\r");
            node.write_all(b"p").unwrap();
            node.write_all(b"s\rnos> ps\x1b[K\r\nidle\r\nshell\r\n\rnos> \x1b[K").unwrap();
        });
        assert_eq!(console.command("ps", soon()).unwrap(), ["idle", "shell"]);
        shell.join().unwrap();
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_shows_what_came() {
        let (mut console, mut node) = pair();
        node.write_all(b"one\r\ntwo").unwrap();
        let error =
            console.expect("three", Instant::now() + Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("waited in vain for \"three\""), "{error}");
        assert!(error.contains("| one\n    | two"), "{error}");
    }

    #[test]
    fn a_console_that_ends_is_not_waited_for() {
        let (mut console, node) = pair();
        drop(node);
        let error = console.expect("x", soon()).unwrap_err().to_string();
        assert!(error.contains("the console ended"), "{error}");
        console.expect_end(soon()).unwrap();
    }
}
