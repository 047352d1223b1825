//! What a person gets for what they wrote.

use proptest::prelude::*;

use super::*;

const WHOLE: &str = r#"
# A comment.
[node]
name = "lab-1"
address = "192.0.2.7/24"
gateway = "192.0.2.1"

[switch]
address = "10.9.0.1/16"

[[guest]]
name = "alpha"
cpus = 2
memory = "256 MiB"
kernel = "guests/vmlinuz"
initrd = "guests/initramfs"
command_line = "console=ttyS0 quiet"
address = "10.9.0.2"
autostart = true

[[guest]]
name = "beta"
memory = "1 GiB"
kernel = "guests/vmlinuz"
network = "none"

[[netblk]]
disk = "nvme0n1"
port = 10809
read_only = true
nic = "eth0"
mtu = 1500
cpu = 3
poll_us = 1000
allow = "10.0.0.0/8, 192.0.2.7"
key = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"

[[forward]]
port = 8080
guest = "alpha"
guest_port = 80
"#;

fn sound(text: &str) -> Config {
    let (config, problems) = parse(text.as_bytes());
    assert_eq!(problems, [], "in {text}");
    config
}

/// The only problem of `text`, as it is shown, and what is left.
fn unsound(text: &str) -> (String, Config) {
    let (config, problems) = parse(text.as_bytes());
    assert_eq!(problems.len(), 1, "{problems:#?}");
    (problems[0].to_string(), config)
}

#[test]
fn a_wrong_key_is_not_repeated() {
    for wrong in
        [r#""c0ffee""#, "1234567", &format!("\"{}\"", "g1".repeat(32)), &format!("\"{}\"", "é".repeat(32))]
    {
        let (message, config) =
            unsound(&format!("[[netblk]]\ndisk = \"nvme0n1\"\nport = 1\nkey = {wrong}\n"));
        assert!(message.contains("64 hexadecimal digits"), "{message}");
        assert!(!message.contains(&wrong.trim_matches('"')[..6]), "{message}");
        assert!(config.netblk.is_empty());
    }
    let (message, _) = unsound("[[netblk]]\ndisk = \"nvme0n1\"\nport = 1\nallow = \"10.0.0.0/33\"\n");
    assert!(message.contains("10.0.0.0/33"), "{message}");
    assert!(!format!("{:?}", sound(WHOLE)).contains("15, 15"));
}

#[test]
fn a_whole_file_is_read() {
    let config = sound(WHOLE);
    assert_eq!(config.node.name, "lab-1");
    let address = Ipv4Cidr::new(Ipv4Addr::new(192, 0, 2, 7), 24);
    assert_eq!(
        config.node.address,
        NodeAddress::Fixed { address, gateway: Some(Ipv4Addr::new(192, 0, 2, 1)) }
    );
    assert_eq!(config.switch.address.prefix_bits(), 16);
    let alpha = config.guest("alpha").unwrap();
    assert_eq!((alpha.cpus, alpha.memory_bytes, alpha.autostart), (2, 256 << 20, true));
    assert_eq!(alpha.initrd.as_deref(), Some("guests/initramfs"));
    let beta = config.guest("beta").unwrap();
    assert_eq!((beta.cpus, beta.network, beta.autostart), (1, GuestNetwork::None, false));
    assert_eq!(
        config.netblk,
        [NetblkService {
            disk: "nvme0n1".into(),
            port: 10809,
            read_only: true,
            nic: Some("eth0".into()),
            mtu: Some(1500),
            cpu: Some(3),
            poll_us: Some(1000),
            allow: Some(vec![
                Ipv4Cidr::new(Ipv4Addr::new(10, 0, 0, 0), 8),
                Ipv4Cidr::new(Ipv4Addr::new(192, 0, 2, 7), 32),
            ]),
            key: Some(NetblkKey([0x0f; 32])),
        }]
    );
    assert_eq!(config.forwards, [Forward { port: 8080, guest: "alpha".into(), guest_port: 80 }]);
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(sound(""), Config::default());
    assert_eq!(sound("[node]\naddress = \"dhcp\"\n").node, Node::default());
}

#[test]
fn a_guest_is_told_who_and_where_it_is() {
    let config = sound(WHOLE);
    assert_eq!(
        config.guest_command_line(config.guest("alpha").unwrap()),
        "console=ttyS0 quiet nos.name=alpha nos.ip=10.9.0.2/16 nos.gw=10.9.0.1 nos.hosts=alpha:10.9.0.2"
    );
    assert_eq!(config.guest_command_line(config.guest("beta").unwrap()), "nos.name=beta");
}

#[test]
fn the_default_configuration_of_the_repository_is_sound() {
    let config = sound(include_str!("../../../nos.toml"));
    assert!(config.guest("alpha").is_some() && config.guest("beta").is_some());
    assert_eq!(config.forwards[0].guest, "alpha");
}

#[test]
fn an_unknown_key_is_named_with_the_one_that_was_meant() {
    let text = "[[guest]]\nname = \"a\"\nmemory = \"64 MiB\"\nkernel = \"k\"\nauto_start = true\n";
    let (message, config) = unsound(text);
    assert_eq!(
        message,
        "nos.toml line 5, column 1: found the unknown key \"auto_start\", expected autostart (did you mean that?); guest a is left out"
    );
    assert!(config.guests.is_empty());
    let (message, _) = unsound("[node]\ncolour = \"blue\"\n");
    assert_eq!(
        message,
        "nos.toml line 2, column 1: found the unknown key \"colour\", expected one of name, mtu, address, gateway; it is ignored"
    );
}

#[test]
fn a_wrong_size_costs_its_guest_only() {
    let text = "[[guest]]\nname = \"a\"\nmemory = \"2 elephants\"\nkernel = \"k\"\n[[guest]]\nname = \"b\"\nmemory = \"64 MiB\"\nkernel = \"k\"\n";
    let (message, config) = unsound(text);
    assert_eq!(
        message,
        "nos.toml line 3, column 10: found memory = \"2 elephants\", expected a size from 16 MiB in steps of 2 MiB, such as \"256 MiB\"; guest a is left out"
    );
    assert_eq!(config.guests.len(), 1);
    assert_eq!(config.guests[0].name, "b");
}

#[test]
fn a_missing_key_is_reported_at_its_section() {
    let (message, config) = unsound("\n[[guest]]\nname = \"a\"\nmemory = \"64 MiB\"\n");
    assert_eq!(
        message,
        "nos.toml line 2, column 1: found no kernel, expected the name of a file in the boot archive, such as \"guests/vmlinuz\"; guest a is left out"
    );
    assert!(config.guests.is_empty());
}

#[test]
fn a_syntax_error_costs_its_section_only() {
    let (message, config) = unsound(&WHOLE.replace("port = 10809", "port = = 10809"));
    assert!(
        message.starts_with("nos.toml line 29, column 8: found extra `=`, expected nothing there; "),
        "{message}"
    );
    assert!(message.ends_with("the section \"[[netblk]]\" is left out"), "{message}");
    assert!(config.netblk.is_empty());
    assert_eq!(config.guests.len(), 2);
    assert_eq!(config.forwards.len(), 1);
    assert_eq!(config.node.name, "lab-1");
}

#[test]
fn a_forward_goes_with_its_guest() {
    let (config, problems) = parse(WHOLE.replace("cpus = 2", "cpus = 0").as_bytes());
    let shown: Vec<String> = problems.iter().map(Problem::to_string).collect();
    assert_eq!(
        shown,
        [
            "nos.toml line 13, column 8: found cpus = 0, expected a number of CPUs from 1 to 16; guest alpha is left out",
            "nos.toml line 40, column 9: found guest alpha, which is not there or left out, expected the name of a guest of this file that has an address; this forward is left out",
        ]
    );
    assert!(config.forwards.is_empty());
}

#[test]
fn what_may_be_there_only_once_is_taken_once() {
    for (again, expected) in [
        (
            "[[guest]]\nname = \"alpha\"\nmemory = \"64 MiB\"\nkernel = \"k\"\n",
            "a second guest called \"alpha\"",
        ),
        ("[[netblk]]\ndisk = \"nvme1n1\"\nport = 10809\n", "port 10809 a second time"),
        ("[[forward]]\nport = 8080\nguest = \"alpha\"\nguest_port = 81\n", "port 8080 a second time"),
        (
            "[[guest]]\nname = \"c\"\nmemory = \"64 MiB\"\nkernel = \"k\"\naddress = \"10.9.0.2\"\n",
            "expected another one: guest alpha has it",
        ),
    ] {
        let (message, config) = unsound(&format!("{WHOLE}{again}"));
        assert!(message.contains(expected), "{message}");
        assert_eq!(config, sound(WHOLE));
    }
}

#[test]
fn a_wrong_setting_of_the_node_keeps_its_default() {
    let (message, config) = unsound("[node]\nname = \"lab\"\naddress = \"10.0.0.1\"\n");
    assert!(message.ends_with("address keeps its default"), "{message}");
    assert_eq!(config.node, Node { name: "lab".into(), address: NodeAddress::Dhcp, mtu: 1500 });
    let (message, config) = unsound("[node]\naddress = \"10.0.0.2/24\"\ngateway = \"10.0.1.1\"\n");
    assert!(message.contains("another address of the node's own network, 10.0.0.2/24"), "{message}");
    let address = Ipv4Cidr::new(Ipv4Addr::new(10, 0, 0, 2), 24);
    assert_eq!(config.node.address, NodeAddress::Fixed { address, gateway: None });
}

#[test]
fn a_section_of_the_wrong_kind_is_named() {
    let (message, _) = unsound("[guest]\nname = \"a\"\n");
    assert!(message.contains("[[guest]], with two brackets"), "{message}");
    let (message, _) = unsound("[[node]]\nname = \"a\"\n");
    assert!(message.contains("expected the section [node]"), "{message}");
    let (message, _) = unsound("[nodes]\nname = \"a\"\n");
    assert!(message.contains("unknown section \"nodes\", expected node (did you mean that?)"), "{message}");
}

#[test]
fn bytes_that_are_not_text_are_found_by_their_place() {
    let (config, problems) = parse(b"[node]\nname = \"\xff\"\n");
    assert_eq!(config, Config::default());
    assert_eq!((problems[0].line, problems[0].column), (2, 9));
    assert_eq!(problems[0].found, "the byte 0xff");
}

#[test]
fn a_message_shows_no_control_characters() {
    let (message, _) = unsound("[node]\nname = \"\\u001b[2J\"\n");
    assert!(message.chars().all(|letter| !letter.is_control()), "{message:?}");
}

proptest! {
    #[test]
    fn garbage_is_reported_and_never_panics(file in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let (_, problems) = parse(&file);
        prop_assert!(problems.len() <= 32);
    }

    /// Text that is nearly a configuration reaches deeper than random bytes do.
    #[test]
    fn damaged_files_are_read_without_a_panic(
        damage in proptest::collection::vec((0..WHOLE.len(), any::<char>(), 0..40usize), 1..6),
    ) {
        let mut letters: Vec<char> = WHOLE.chars().collect();
        for (place, letter, removed) in damage {
            let place = place.min(letters.len());
            let end = (place + removed).min(letters.len());
            letters.splice(place..end, [letter]);
        }
        let text: String = letters.into_iter().collect();
        let (config, problems) = parse(text.as_bytes());
        for problem in &problems {
            prop_assert!(problem.line >= 1 && problem.column >= 1);
            prop_assert!(problem.line <= text.lines().count() + 1);
        }
        for forward in &config.forwards {
            prop_assert!(config.guest(&forward.guest).is_some());
        }
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack(depth in 1..8_000usize, open in "[\\[{=.a]{1,2}") {
        let _ = parse(format!("a = {}", open.repeat(depth)).as_bytes());
        let _ = parse(format!("a{} = 1", ".a".repeat(depth)).as_bytes());
    }
}

#[test]
fn brackets_within_brackets_end_before_the_stack_does() {
    for (open, close) in [("[", "]"), ("{a=", "}")] {
        let text = format!("[node]\nname = \"b\"\nx = {}1{}\n", open.repeat(5000), close.repeat(5000));
        let (config, problems) = parse(text.as_bytes());
        assert_eq!(config, Config::default());
        assert_eq!((problems.len(), problems[0].line), (1, 3), "{problems:?}");
    }
    let brackets = "[".repeat(100);
    let (config, problems) = parse(format!("# {brackets}\n[node]\nname = \"lab\"\n").as_bytes());
    assert_eq!((config.node.name.as_str(), problems.len()), ("lab", 0));
}

#[test]
fn a_guest_has_disks_in_every_form() {
    let with =
        |disk: &str| format!("[[guest]]\nname = \"a\"\nmemory = \"32 MiB\"\nkernel = \"k\"\ndisk = {disk}\n");
    let disk = |name: &str, read_only| GuestDisk { name: name.to_owned(), read_only };
    let disks = |text: &str| sound(&with(text)).guests[0].disks.clone();
    assert_eq!(disks("\"nvme0n1p1\""), [disk("nvme0n1p1", false)]);
    assert_eq!(disks("{ name = \"vda\", read_only = true }"), [disk("vda", true)]);
    let several = disks("[\"vda\", { name = \"vdb\" }, { read_only = true, name = \"vdc\" }]");
    assert_eq!(several, [disk("vda", false), disk("vdb", false), disk("vdc", true)]);
    assert_eq!(disks("[]"), []);
    for wrong in [
        "1",
        "\"/dev/vda\"",
        "[1]",
        "[[\"vda\"]]",
        "{ read_only = true }",
        "{ name = \"vda\", read_only = 1 }",
        "{ name = \"vda\", readonly = true }",
        "[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\", \"i\"]",
        "[\"vda\", \"vda\"]",
    ] {
        let (problem, config) = unsound(&with(wrong));
        assert!(problem.contains("guest a is left out") && config.guests.is_empty(), "{wrong}: {problem}");
    }
}
