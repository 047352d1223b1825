//! `netblk start <disk> <port> [ro] [nic=eth0] [mtu=1500] [cpu=N] [poll=us] [allow=CIDR,...] [key=HEX]`.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU16;

use netblk_proto::v2::{KeyError, PreSharedKey};

use crate::access::{Access, Network};

/// How the command is written.
pub const USAGE: &str = "netblk start <disk> <port> [ro] [nic=eth0] [mtu=1500] [cpu=N] [poll=us] [allow=CIDR,...] [key=64 hex digits]";

/// The card served on if none is named.
pub const DEFAULT_NIC: &str = "eth0";

/// What datagrams are cut for if nothing else is said: Ethernet's payload.
pub const DEFAULT_MTU: u16 = 1500;

/// The longest `poll=`: a second. A worker that polls longer than that between two requests is a
/// CPU given away.
pub const MAX_POLL_US: u32 = 1_000_000;

/// What to serve, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOptions {
    /// The disk or partition, by name.
    pub disk: String,
    /// The UDP port.
    pub port: NonZeroU16,
    /// Refuse WRITE.
    pub read_only: bool,
    /// The network card, by name.
    pub nic: String,
    /// What datagrams are cut for, from the IP header on.
    pub mtu: u16,
    /// The worker's CPU; `None`: [`default_cpu`].
    pub cpu: Option<usize>,
    /// How long the worker polls for requests after work, in us; `None`: as long as pays.
    pub poll_us: Option<u32>,
    /// Who may use it.
    pub access: Access,
}

/// What is wrong with a start command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionError {
    /// No disk was named.
    NoDisk,
    /// No port was named.
    NoPort,
    /// The port is not a number from 1 to 65535.
    Port(String),
    /// A word that is no option.
    Unknown(String),
    /// An option's value is not what it should be.
    Value {
        /// The option.
        key: &'static str,
        /// What was written.
        value: String,
        /// What may be written.
        expected: &'static str,
    },
    /// The key is none. What was written is not repeated.
    Key(KeyError),
    /// An option stands there twice.
    Twice(&'static str),
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDisk => write!(f, "which disk? `disks` lists them. Usage: {USAGE}"),
            Self::NoPort => write!(f, "on which UDP port? Usage: {USAGE}"),
            Self::Port(text) => write!(f, "\"{text}\" is no UDP port: a number from 1 to 65535 is needed"),
            Self::Unknown(word) => write!(f, "\"{word}\" is no option. Usage: {USAGE}"),
            Self::Value { key, value, expected } => write!(f, "{key}={value}: {expected} is needed"),
            Self::Key(error) => write!(f, "key=: {error}"),
            Self::Twice(key) => write!(f, "{key} is given twice"),
        }
    }
}

impl core::error::Error for OptionError {}

impl StartOptions {
    /// The options of a service on `port` with every default.
    pub fn new(disk: &str, port: NonZeroU16) -> Self {
        Self {
            disk: disk.to_owned(),
            port,
            read_only: false,
            nic: DEFAULT_NIC.to_owned(),
            mtu: DEFAULT_MTU,
            cpu: None,
            poll_us: None,
            access: Access::default(),
        }
    }

    /// Reads the words behind `netblk start`.
    ///
    /// # Errors
    /// [`OptionError`] says which word is wrong and what was expected there.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, OptionError> {
        let mut words = words.into_iter();
        let disk = words.next().ok_or(OptionError::NoDisk)?;
        let port = words.next().ok_or(OptionError::NoPort)?;
        let port = port.parse().map_err(|_| OptionError::Port(port.to_owned()))?;
        let mut options = Self::new(disk, port);
        let mut seen = Seen::default();
        for word in words {
            match word.split_once('=') {
                None if word == "ro" => {
                    seen.once("ro")?;
                    options.read_only = true;
                }
                Some(("nic", value)) => {
                    seen.once("nic")?;
                    options.nic = value.to_owned();
                }
                Some(("mtu", value)) => {
                    seen.once("mtu")?;
                    options.mtu = number("mtu", value, "a number of bytes up to 65535")?;
                }
                Some(("cpu", value)) => {
                    seen.once("cpu")?;
                    options.cpu = Some(number("cpu", value, "a CPU's number (`cpu` lists them)")?);
                }
                Some(("poll", value)) => {
                    seen.once("poll")?;
                    let expected = "a number of microseconds up to 1000000";
                    let poll_us = number("poll", value, expected)?;
                    options.poll_us = Some(poll_us);
                    if poll_us > MAX_POLL_US {
                        return Err(OptionError::Value { key: "poll", value: value.to_owned(), expected });
                    }
                }
                Some(("allow", value)) => {
                    seen.once("allow")?;
                    options.access.allow = Some(networks(value)?);
                }
                Some(("key", value)) => {
                    seen.once("key")?;
                    options.access.key = Some(PreSharedKey::from_hex(value).map_err(OptionError::Key)?);
                }
                _ => return Err(OptionError::Unknown(word.to_owned())),
            }
        }
        Ok(options)
    }
}

/// The worker's CPU if none is named: the last one. Guests are placed from the first on, and the
/// first takes the interrupts of the devices that the boot sets up.
pub const fn default_cpu(cpus: usize) -> usize {
    cpus.saturating_sub(1)
}

fn number<T: core::str::FromStr>(
    key: &'static str,
    value: &str,
    expected: &'static str,
) -> Result<T, OptionError> {
    value.parse().map_err(|_| OptionError::Value { key, value: value.to_owned(), expected })
}

fn networks(value: &str) -> Result<Vec<Network>, OptionError> {
    value
        .split(',')
        .map(|network| number("allow", network, "networks such as 192.0.2.0/24,10.0.0.7"))
        .collect()
}

/// The options already read.
#[derive(Default)]
struct Seen([Option<&'static str>; 7]);

impl Seen {
    fn once(&mut self, key: &'static str) -> Result<(), OptionError> {
        for place in &mut self.0 {
            match place {
                Some(earlier) if *earlier == key => return Err(OptionError::Twice(key)),
                Some(_) => {}
                None => {
                    *place = Some(key);
                    break;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(line: &str) -> Result<StartOptions, OptionError> {
        StartOptions::parse(line.split_whitespace())
    }

    #[test]
    fn the_shortest_and_the_longest_form() {
        let port = NonZeroU16::new(10809).unwrap();
        assert_eq!(parse("nvme0n1 10809"), Ok(StartOptions::new("nvme0n1", port)));
        assert_eq!(
            parse("nvme0n1p2 10809 ro nic=eth1 mtu=1400 cpu=3 poll=1000"),
            Ok(StartOptions {
                read_only: true,
                nic: "eth1".to_owned(),
                mtu: 1400,
                cpu: Some(3),
                poll_us: Some(1000),
                ..StartOptions::new("nvme0n1p2", port)
            })
        );
    }

    #[test]
    fn every_error_says_what_was_expected() {
        let text = |line: &str| parse(line).unwrap_err().to_string();
        assert!(text("").contains("which disk"));
        assert!(text("nvme0n1").contains("UDP port"));
        for port in ["0", "65536", "-1", "ten"] {
            assert!(text(&format!("nvme0n1 {port}")).contains("1 to 65535"));
        }
        assert!(text("nvme0n1 1 rw").contains("\"rw\" is no option"));
        assert!(text("nvme0n1 1 mtu=big").contains("mtu=big"));
        assert!(text("nvme0n1 1 cpu=").contains("CPU's number"));
        assert!(text("nvme0n1 1 poll=1000001").contains("microseconds"));
        assert!(text("nvme0n1 1 allow=10.0.0.0/8,ten").contains("allow=ten"));
        assert!(text("nvme0n1 1 allow=").contains("192.0.2.0/24"));
        let secret = text("nvme0n1 1 key=c0ffee");
        assert!(secret.contains("64 hexadecimal digits") && !secret.contains("c0ffee"), "{secret}");
        assert!(text("nvme0n1 1 ro ro").contains("twice"));
        assert!(text("nvme0n1 1 nic=a mtu=1500 cpu=1 poll=1 ro nic=b").contains("nic is given twice"));
    }

    #[test]
    fn who_may_use_it() {
        let access =
            parse(&format!("d 1 allow=10.0.0.0/8,192.0.2.7 key={}", "0f".repeat(32))).unwrap().access;
        assert_eq!(access.key, Some(PreSharedKey::new([0x0F; 32])));
        let allow: Vec<_> = access.allow.unwrap().iter().map(Network::to_string).collect();
        assert_eq!(allow, ["10.0.0.0/8", "192.0.2.7/32"]);
    }

    #[test]
    fn the_worker_lives_on_the_last_cpu() {
        assert_eq!([0, 1, 2, 16].map(default_cpu), [0, 0, 1, 15]);
    }

    proptest! {
        #[test]
        fn any_words_are_judged_without_panic(words: Vec<String>) {
            let _ = StartOptions::parse(words.iter().map(String::as_str));
        }
    }
}
