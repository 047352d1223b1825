//! QEMU's machine protocol: how a story pulls a disk out or presses a button.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// A connection that is ready for commands.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    pub fn connect(path: &Path) -> Result<Qmp> {
        let stream =
            UnixStream::connect(path).with_context(|| format!("connecting to {}", path.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).context("setting a deadline")?;
        let mut qmp = Qmp { reader: BufReader::new(stream) };
        let greeting = qmp.read()?;
        if greeting.get("QMP").is_none() {
            bail!("no greeting of QMP but {greeting}");
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command and returns its answer. Events that come in between are passed over.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.reader.get_mut(), "{request}").with_context(|| format!("sending {request}"))?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {request}: {error}");
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// A command of QEMU's monitor for people; its answer is text.
    pub fn monitor(&mut self, command: &str) -> Result<String> {
        let answer = self.execute("human-monitor-command", json!({ "command-line": command }))?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).context("reading QEMU's answer")? == 0 {
            bail!("QEMU closed the connection");
        }
        serde_json::from_str(&line).with_context(|| format!("understanding QEMU's answer {line:?}"))
    }
}
