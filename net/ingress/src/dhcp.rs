//! The one thing of a DHCP answer that the library does not hand out.

/// Options begin behind the fixed part and the magic cookie (RFC 2131 section 3).
const COOKIE_OFFSET: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const OPTION_PAD: u8 = 0;
const OPTION_END: u8 = 255;
/// IP address lease time (RFC 2132 section 9.2).
const OPTION_LEASE_TIME: u8 = 51;

/// For how many seconds the server lends the address; `None` where the message does not say.
/// `u32::MAX` means for ever.
pub fn dhcp_lease_seconds(message: &[u8]) -> Option<u32> {
    let mut options = message.get(COOKIE_OFFSET..)?.strip_prefix(&COOKIE)?;
    loop {
        let (&code, rest) = options.split_first()?;
        match code {
            OPTION_PAD => options = rest,
            OPTION_END => return None,
            _ => {
                let (&length, rest) = rest.split_first()?;
                let (data, rest) = rest.split_at_checked(length.into())?;
                if code == OPTION_LEASE_TIME {
                    return data.try_into().ok().map(u32::from_be_bytes);
                }
                options = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(options: &[u8]) -> Vec<u8> {
        [&[0; COOKIE_OFFSET][..], &COOKIE, options].concat()
    }

    #[test]
    fn the_lease_time_is_found_among_other_options() {
        let options = [53, 1, 5, 0, 0, 51, 4, 0, 1, 0x51, 0x80, 255];
        assert_eq!(dhcp_lease_seconds(&message(&options)), Some(86400));
        assert_eq!(dhcp_lease_seconds(&message(&[53, 1, 5, 255, 51, 4, 0, 0, 0, 1])), None);
        assert_eq!(dhcp_lease_seconds(&message(&[51, 2, 0, 0])), None);
        assert_eq!(dhcp_lease_seconds(&message(&[51, 4, 0, 0])), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(options in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = (dhcp_lease_seconds(&options), dhcp_lease_seconds(&message(&options)));
        }
    }
}
