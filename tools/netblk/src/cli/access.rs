//! Which server, and how to speak with it.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use netblk::engine::Protocol;
use netblk::{Error, Options};
use netblk_proto::v2::PreSharedKey;

/// Which version of the protocol is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Version {
    /// Version 2, or version 1 with a server that knows no other.
    Auto,
    /// Version 1: no session, no key.
    #[value(name = "1")]
    One,
    /// Version 2 or nothing.
    #[value(name = "2")]
    Two,
}

/// Whom to talk to, and how.
#[derive(Debug, Args)]
pub struct Access {
    /// The server, as HOST:PORT.
    #[arg(value_hint = ValueHint::Hostname)]
    pub target: String,
    /// Requests under way at once; fewer while the network loses.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub window: u32,
    /// Which version of the protocol to speak.
    #[arg(long, value_enum, default_value_t = Version::Auto)]
    pub protocol: Version,
    /// A file with the service's key: 64 hexadecimal digits. Let nobody else read it.
    #[arg(long, value_name = "FILE", env = "NETBLK_KEY_FILE", value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,
}

impl Access {
    /// What the client library wants to know of it.
    ///
    /// # Errors
    /// If the key cannot be read.
    pub fn options(&self) -> Result<Options, Error> {
        let key = match &self.key_file {
            None => PreSharedKey::NONE,
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(Error::local(format!("reading the key in {}", path.display())))?;
                PreSharedKey::from_hex(text.trim())
                    .map_err(|error| Error::Usage(format!("the key in {}: {error}", path.display())))?
            }
        };
        let protocol = match self.protocol {
            Version::Auto => Protocol::Auto,
            Version::One => Protocol::One,
            Version::Two => Protocol::Two,
        };
        // Whoever was given a key wants it used: version 1 has none.
        if self.key_file.is_some() && protocol == Protocol::One {
            return Err(Error::Usage("version 1 of the protocol knows no key (--key-file)".to_owned()));
        }
        let protocol = if self.key_file.is_some() { Protocol::Two } else { protocol };
        Ok(Options { window: self.window, protocol, key, ..Options::default() })
    }
}
