//! The configuration and the node's stack have one rule for the addresses that a host can have.
//!
//! The rule is written twice, because the configuration is read on hosts too and uses nothing of
//! the node. An address that one takes and the other refuses would be lost without a line in the
//! file to point at; so they are asked the same questions here.

use std::net::Ipv4Addr;

use config::NodeAddress;
use ingress::Subnet;
use proptest::prelude::*;

/// What the configuration makes of an address: its network, or the line of its problem.
fn configured(section: &str, address: Ipv4Addr, prefix_bits: u8) -> Result<(Ipv4Addr, u8), usize> {
    let text = format!("\n[{section}]\naddress = \"{address}/{prefix_bits}\"\n");
    let (config, problems) = config::parse(text.as_bytes());
    if let Some(problem) = problems.first() {
        return Err(problem.line);
    }
    let address = match (section, config.node.address) {
        ("node", NodeAddress::Fixed { address, .. }) => address,
        _ => config.switch.address,
    };
    Ok((address.address(), address.prefix_bits()))
}

fn check(address: Ipv4Addr, prefix_bits: u8) -> Result<(), TestCaseError> {
    let of_the_stack =
        Subnet::new(address, prefix_bits).map(|subnet| (subnet.address(), subnet.prefix_bits()));
    for section in ["node", "switch"] {
        prop_assert_eq!(
            configured(section, address, prefix_bits),
            of_the_stack.ok_or(3),
            "{}/{} in [{}]",
            address,
            prefix_bits,
            section
        );
    }
    Ok(())
}

#[test]
fn the_edges_of_every_range() {
    for first in 0..=u8::MAX {
        for rest in [[0, 0, 0], [0, 0, 1], [0, 255, 255], [255, 255, 254], [255, 255, 255]] {
            for prefix_bits in [1, 8, 24, 30, 31, 32, 33, 255] {
                check(Ipv4Addr::new(first, rest[0], rest[1], rest[2]), prefix_bits).unwrap();
            }
        }
    }
}

proptest! {
    /// A prefix of 0 is the one difference: DHCP may have its reasons, a person has none.
    #[test]
    fn any_address(address: u32, prefix_bits in 1_u8..) {
        check(Ipv4Addr::from(address), prefix_bits)?;
    }
}
