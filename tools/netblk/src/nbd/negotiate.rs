//! The first part of a connection: which export, and how replies are to look.

use std::io::{self, Read, Write};

use super::Export;
use super::wire::{
    self, FIXED_NEWSTYLE, MAX_OPTION_BYTES, NO_ZEROES, OPTION_HEADER_BYTES, Style, Wanted, option, reply,
};

/// Options of one connection before it is given up: nobody needs so many.
const MOST_OPTIONS: u32 = 64;

/// How a negotiation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Requests follow.
    Transmission(Style),
    /// The client has seen enough, or asks for what it cannot have.
    Closed,
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Negotiates.
///
/// # Errors
/// The connection's; or the client does not speak NBD.
pub fn negotiate(stream: &mut (impl Read + Write), export: &Export) -> io::Result<Outcome> {
    let mut greeting = wire::GREETING.to_be_bytes().to_vec();
    greeting.extend(wire::OPTION.to_be_bytes());
    greeting.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    stream.write_all(&greeting)?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 || flags & u32::from(FIXED_NEWSTYLE) == 0 {
        return Err(broken("flags that are not understood"));
    }
    let mut style = Style::Simple;
    for _ in 0..MOST_OPTIONS {
        let mut header = [0; OPTION_HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let (number, length) =
            wire::option_header(&header).ok_or_else(|| broken("no option where one must be"))?;
        let answer = |kind: u32, data: &[u8]| wire::option_reply(number, kind, data);
        if length > MAX_OPTION_BYTES {
            let skipped = io::copy(&mut Read::by_ref(stream).take(length.into()), &mut io::sink())?;
            if skipped < u64::from(length) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            stream.write_all(&answer(reply::TOO_BIG, &[]))?;
            continue;
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match number {
            option::EXPORT_NAME => {
                // The only option that cannot be answered with "no".
                if !export.is_called(&data) || export.sector_bytes() > 512 {
                    return Ok(Outcome::Closed);
                }
                let mut found = export.size_bytes().to_be_bytes().to_vec();
                found.extend(export.flags(style).to_be_bytes());
                if flags & u32::from(NO_ZEROES) == 0 {
                    found.extend([0; 124]);
                }
                stream.write_all(&found)?;
                return Ok(Outcome::Transmission(style));
            }
            option::ABORT => {
                stream.write_all(&answer(reply::ACK, &[]))?;
                return Ok(Outcome::Closed);
            }
            option::LIST if data.is_empty() => {
                let name = export.name.as_bytes();
                let entry = [&(name.len() as u32).to_be_bytes()[..], name].concat();
                stream.write_all(&[answer(reply::SERVER, &entry), answer(reply::ACK, &[])].concat())?;
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                style = Style::Structured;
                stream.write_all(&answer(reply::ACK, &[]))?;
            }
            option::INFO | option::GO => {
                let Some(wanted) = Wanted::parse(&data) else {
                    stream.write_all(&answer(reply::INVALID, &[]))?;
                    continue;
                };
                if !export.is_called(wanted.name) {
                    stream.write_all(&answer(reply::UNKNOWN, b"there is no such export"))?;
                    continue;
                }
                if export.sector_bytes() > 512 && !wanted.infos.contains(&wire::info::BLOCK_SIZE) {
                    // A client that does not ask takes 512 bytes for granted (proto.md, "Block size constraints").
                    stream.write_all(&answer(reply::BLOCK_SIZE_REQUIRED, &[]))?;
                    continue;
                }
                let mut answers = Vec::new();
                for item in export.describe(&wanted.infos, style) {
                    answers.extend(answer(reply::INFO, &item));
                }
                answers.extend(answer(reply::ACK, &[]));
                stream.write_all(&answers)?;
                if number == option::GO {
                    return Ok(Outcome::Transmission(style));
                }
            }
            option::LIST | option::STRUCTURED_REPLY => stream.write_all(&answer(reply::INVALID, &[]))?,
            _ => stream.write_all(&answer(reply::UNSUPPORTED, &[]))?,
        }
    }
    Err(broken("too many options"))
}
