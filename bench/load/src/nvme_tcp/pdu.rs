//! What an initiator sends and receives: NVMe over Fabrics (revision 1.1a) and its TCP transport (NVM Express TCP
//! Transport Specification, revision 1.0; "TCP" below). Everything is little-endian.

/// The header that all PDUs share (TCP section 3.6.1): type, flags, header length, data offset, PDU length.
pub const COMMON_BYTES: usize = 8;
/// Of a capsule with a completion, and of a header of data to the host (TCP sections 3.6.2.6 and 3.6.2.9).
pub const RESPONSE_BYTES: usize = 24;
/// Of initialize-connection requests and responses (TCP sections 3.6.2.2 and 3.6.2.3).
pub const CONNECTION_BYTES: usize = 128;
/// A command.
pub const COMMAND_BYTES: usize = 64;
/// The data of a Connect command (Fabrics section 3.3).
pub const CONNECT_DATA_BYTES: usize = 1024;

/// PDU types (TCP section 3.6.1, figure 12).
pub mod kind {
    pub const CONNECTION_REQUEST: u8 = 0x00;
    pub const CONNECTION_RESPONSE: u8 = 0x01;
    pub const COMMAND: u8 = 0x04;
    pub const RESPONSE: u8 = 0x05;
    pub const DATA_TO_HOST: u8 = 0x07;
}

/// A data PDU that ends its command: no completion follows (TCP section 3.6.2.9).
pub const DATA_FLAG_SUCCESS: u8 = 1 << 3;

/// Opcodes of commands (NVMe base and NVM command sets) and of fabrics commands (Fabrics section 3).
pub mod opcode {
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const FABRICS: u8 = 0x7f;
}

/// Types of fabrics commands.
pub mod fabrics {
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
}

/// A command's 64 bytes.
#[derive(Debug, Clone)]
pub struct Command([u8; COMMAND_BYTES]);

impl Command {
    /// A command of which only what every one has is set. Fabrics carries data by SGL only (Fabrics section 2.3).
    pub fn new(opcode: u8, identifier: u16) -> Self {
        const DATA_BY_SGL: u8 = 0b01 << 6;
        let mut command = Self([0; COMMAND_BYTES]);
        command.put(0, &[opcode, DATA_BY_SGL]).put(2, &identifier.to_le_bytes());
        command
    }

    pub fn fabrics(kind: u8, identifier: u16) -> Self {
        let mut command = Self::new(opcode::FABRICS, identifier);
        command.put(4, &[kind]);
        command
    }

    /// Connects a queue: 0 is the administrator's (Fabrics section 3.3).
    pub fn connect(identifier: u16, queue: u16, entries: u16) -> Self {
        let mut command = Self::fabrics(fabrics::CONNECT, identifier);
        command.put(42, &queue.to_le_bytes()).put(44, &(entries - 1).to_le_bytes());
        command.data_in_capsule(CONNECT_DATA_BYTES as u32);
        command
    }

    pub fn property_set(identifier: u16, property: u32, value: u64) -> Self {
        let mut command = Self::fabrics(fabrics::PROPERTY_SET, identifier);
        command.put(44, &property.to_le_bytes()).put(48, &value.to_le_bytes());
        command
    }

    pub fn property_get(identifier: u16, property: u32) -> Self {
        let mut command = Self::fabrics(fabrics::PROPERTY_GET, identifier);
        command.put(44, &property.to_le_bytes());
        command
    }

    pub fn identify(identifier: u16, namespace: u32, what: u8, bytes: u32) -> Self {
        let mut command = Self::new(opcode::IDENTIFY, identifier);
        command.put(4, &namespace.to_le_bytes()).put(40, &[what]);
        command.data_to_host(bytes);
        command
    }

    /// READ or WRITE of whole blocks; a WRITE's data is in the capsule.
    pub fn move_blocks(opcode: u8, identifier: u16, namespace: u32, at: Blocks) -> Self {
        let mut command = Self::new(opcode, identifier);
        command.put(4, &namespace.to_le_bytes()).put(40, &at.first.to_le_bytes());
        command.put(48, &(at.count - 1).to_le_bytes());
        match opcode {
            opcode::WRITE => command.data_in_capsule(at.bytes),
            _ => command.data_to_host(at.bytes),
        };
        command
    }

    /// The data stands behind the command: a data block descriptor of subtype offset (Fabrics section 2.3.1).
    fn data_in_capsule(&mut self, bytes: u32) -> &mut Self {
        self.put(32, &bytes.to_le_bytes()).put(39, &[0x01])
    }

    /// The transport brings the data: a transport data block descriptor (Fabrics section 2.3.1).
    fn data_to_host(&mut self, bytes: u32) -> &mut Self {
        self.put(32, &bytes.to_le_bytes()).put(39, &[0x5a])
    }

    fn put(&mut self, at: usize, field: &[u8]) -> &mut Self {
        self.0[at..at + field.len()].copy_from_slice(field);
        self
    }

    /// Appends the capsule (TCP section 3.6.2.5): command and, behind it, data.
    pub fn append_to(&self, out: &mut Vec<u8>, data_bytes: usize) {
        const HEADER_BYTES: u8 = (COMMON_BYTES + COMMAND_BYTES) as u8;
        let data_offset = if data_bytes == 0 { 0 } else { HEADER_BYTES };
        out.extend_from_slice(&[kind::COMMAND, 0, HEADER_BYTES, data_offset]);
        let length = usize::from(HEADER_BYTES) + data_bytes;
        // A command's data is at most 64 KiB here.
        out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&self.0);
    }
}

/// Where and how much.
#[derive(Debug, Clone, Copy)]
pub struct Blocks {
    pub first: u64,
    pub count: u32,
    /// The same as `count`, in bytes.
    pub bytes: u32,
}

/// An initialize-connection request: format 0, no digests, no padding (TCP section 3.6.2.2).
pub fn connection_request() -> [u8; CONNECTION_BYTES] {
    let mut pdu = [0; CONNECTION_BYTES];
    pdu[0] = kind::CONNECTION_REQUEST;
    pdu[2] = CONNECTION_BYTES as u8;
    pdu[4] = CONNECTION_BYTES as u8;
    pdu
}

/// The data of a Connect command. `controller` is 0xffff on the first queue, and what its completion says on the
/// others.
pub fn connect_data(controller: u16, subsystem: &str) -> Option<[u8; CONNECT_DATA_BYTES]> {
    const HOST_IDENTIFIER: [u8; 16] = *b"nos load generat";
    const HOST_NAME: &[u8] = b"nqn.2014-08.org.nvmexpress:uuid:6e6f7320-6c6f-6164-2067-656e65726174";
    const NAME_BYTES: usize = 256;
    let mut data = [0; CONNECT_DATA_BYTES];
    let mut put = |at: usize, field: &[u8]| data[at..at + field.len()].copy_from_slice(field);
    put(0, &HOST_IDENTIFIER);
    put(16, &controller.to_le_bytes());
    (subsystem.len() < NAME_BYTES).then(|| put(256, subsystem.as_bytes()))?;
    put(512, HOST_NAME);
    Some(data)
}

/// What a target sends once the connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming {
    /// A command is done; its status field without the phase (0: success), and the result.
    Completion { identifier: u16, status: u16, result: u64 },
    /// Data of a command; so many bytes follow the header. With `last`, no completion follows.
    Data { identifier: u16, following_bytes: usize, last: bool },
    /// Anything else.
    Unknown { kind: u8 },
}

impl Incoming {
    /// Reads a header. Completions and data have headers of the same length.
    pub fn parse(pdu: &[u8; RESPONSE_BYTES]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([pdu[at], pdu[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let length = u32_at(4) as usize;
        match pdu[0] {
            kind::RESPONSE if length == RESPONSE_BYTES => Self::Completion {
                identifier: u16_at(20),
                status: u16_at(22) >> 1,
                result: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            },
            kind::DATA_TO_HOST if length >= RESPONSE_BYTES => Self::Data {
                identifier: u16_at(8),
                following_bytes: length - RESPONSE_BYTES,
                last: pdu[1] & DATA_FLAG_SUCCESS != 0,
            },
            kind => Self::Unknown { kind },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_laid_out_as_the_specifications_say() {
        let mut capsule = Vec::new();
        let at = Blocks { first: 0x0102_0304_0506, count: 2, bytes: 1024 };
        Command::move_blocks(opcode::READ, 7, 1, at).append_to(&mut capsule, 0);
        assert_eq!(capsule[..8], [4, 0, 72, 0, 72, 0, 0, 0]);
        let command = &capsule[8..];
        assert_eq!(command.len(), COMMAND_BYTES);
        assert_eq!(command[..8], [0x02, 0x40, 7, 0, 1, 0, 0, 0]);
        assert_eq!(command[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0x5a]);
        assert_eq!(command[40..52], [6, 5, 4, 3, 2, 1, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_write_says_that_its_data_follows() {
        let mut capsule = Vec::new();
        let at = Blocks { first: 0, count: 2, bytes: 1024 };
        Command::move_blocks(opcode::WRITE, 7, 1, at).append_to(&mut capsule, 1024);
        assert_eq!(capsule[..8], [4, 0, 72, 72, 0x48, 4, 0, 0]);
        assert_eq!(capsule[8 + 39], 0x01);
    }

    #[test]
    fn what_a_target_sends_is_told_apart() {
        let mut pdu = [0; RESPONSE_BYTES];
        pdu[..8].copy_from_slice(&[5, 0, 24, 0, 24, 0, 0, 0]);
        pdu[8] = 3;
        pdu[20] = 9;
        pdu[22..].copy_from_slice(&[0x04, 0x40]);
        let status = 0x2002;
        assert_eq!(Incoming::parse(&pdu), Incoming::Completion { identifier: 9, status, result: 3 });
        pdu[..8].copy_from_slice(&[7, 0x0c, 24, 24, 24, 4, 0, 0]);
        pdu[8] = 9;
        assert_eq!(
            Incoming::parse(&pdu),
            Incoming::Data { identifier: 9, following_bytes: 1024, last: true }
        );
        pdu[4..8].copy_from_slice(&[23, 0, 0, 0]);
        assert_eq!(Incoming::parse(&pdu), Incoming::Unknown { kind: 7 });
    }
}
