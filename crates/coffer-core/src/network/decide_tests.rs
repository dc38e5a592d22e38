use super::*;
use crate::network::Mirrors;
use proptest::prelude::*;

fn policy(base: Base, allow: &[&str], deny: &[&str]) -> Policy {
    let entries = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
    Policy::new(base, entries(allow), entries(deny)).unwrap()
}

fn to(name: &str, address: &str, port: u16) -> Destination {
    let name = (!name.is_empty()).then(|| name.parse().unwrap());
    Destination { name, address: address.parse().unwrap(), port }
}

fn rule(policy: &Policy, destination: &Destination) -> String {
    match decide(policy, &Walls::new(["9.9.9.9".parse().unwrap()]), destination) {
        Decision::Allow { rule } => format!("yes {rule}"),
        Decision::Refuse { rule } => format!("no {rule}"),
    }
}

#[test]
fn every_answer_names_its_rule() {
    let none = policy(Base::None, &[], &[]);
    let web = policy(Base::Web, &[], &[]);
    let public = policy(Base::Public, &[], &["8.8.8.0/24", "bad.com", "*:25"]);
    let listed = policy(
        Base::Public,
        &["a.com", "*.b.com:443", "1.2.3.0/24:22", "[2606:4700::/32]:53"],
        &["0.0.0.0/0", "::/0"],
    );
    for (policy, name, address, port, expected) in [
        (&none, "", "1.1.1.1", 443, "no base:none"),
        (&web, "", "1.1.1.1", 443, "yes base:web"),
        (&web, "", "1.1.1.1", 80, "yes base:web"),
        (&web, "", "2606:4700::1", 443, "yes base:web"),
        (&web, "", "1.1.1.1", 22, "no base:web"),
        (&web, "a.com", "10.0.0.1", 443, "no never:private"),
        (&web, "", "9.9.9.9", 443, "no never:host"),
        (&web, "", "64:ff9b::a9fe:a9fe", 80, "no never:metadata"),
        (&public, "", "1.1.1.1", 22, "yes base:public"),
        (&public, "", "8.8.8.8", 443, "no deny:8.8.8.0/24"),
        (&public, "", "::ffff:8.8.8.8", 443, "no deny:8.8.8.0/24"),
        (&public, "", "64:ff9b::8.8.8.8", 443, "no deny:8.8.8.0/24"),
        (&public, "bad.com", "1.1.1.1", 443, "no deny:bad.com"),
        (&public, "not.bad.com", "1.1.1.1", 443, "yes base:public"),
        (&public, "", "1.1.1.1", 25, "no deny:*:25"),
        (&listed, "a.com", "1.1.1.1", 8080, "yes allow:a.com"),
        (&listed, "b.com", "1.1.1.1", 443, "no deny:0.0.0.0/0"),
        (&listed, "x.b.com", "1.1.1.1", 443, "yes allow:*.b.com:443"),
        (&listed, "x.b.com", "1.1.1.1", 80, "no deny:0.0.0.0/0"),
        (&listed, "x.b.com", "2a00::1", 80, "no deny:::/0"),
        (&listed, "", "1.2.3.4", 22, "yes allow:1.2.3.0/24:22"),
        (&listed, "a.com", "1.2.3.4", 22, "yes allow:1.2.3.0/24:22"),
        (&listed, "", "2606:4700::1", 53, "yes allow:[2606:4700::/32]:53"),
        (&listed, "a.com", "127.0.0.1", 80, "no never:loopback"),
    ] {
        assert_eq!(rule(policy, &to(name, address, port)), expected, "{name} {address} {port}");
    }
}

#[test]
fn a_name_is_waited_for_only_where_it_matters() {
    let walls = Walls::default();
    let names = policy(Base::Public, &["a.com:443", "1.1.1.1"], &["0.0.0.0/0", "::/0"]);
    for (policy, address, port, expected) in [
        (&names, "2.2.2.2", 443, true),
        (&names, "2.2.2.2", 22, false),
        (&names, "1.1.1.1", 443, false),
        (&names, "10.0.0.1", 443, false),
        (&policy(Base::Public, &[], &[]), "2.2.2.2", 443, false),
        (&policy(Base::Public, &[], &["bad.com"]), "2.2.2.2", 443, true),
        (&policy(Base::None, &[], &[]), "2.2.2.2", 443, false),
        (&policy(Base::Web, &["a.com:22"], &[]), "2.2.2.2", 22, true),
        (&policy(Base::Web, &["a.com:22"], &[]), "2.2.2.2", 443, false),
    ] {
        assert_eq!(needs_name(policy, &walls, address.parse().unwrap(), port), expected, "{address} {port}");
    }
}

#[test]
fn only_usable_names_are_asked_for() {
    for (policy, name, expected) in [
        (policy(Base::None, &[], &[]), "a.com", false),
        (policy(Base::None, &["a.com:443"], &[]), "a.com", true),
        (policy(Base::None, &["1.1.1.1"], &[]), "a.com", false),
        (policy(Base::Web, &[], &[]), "a.com", true),
        (policy(Base::Public, &["*.a.com"], &["0.0.0.0/0", "::/0"]), "a.com", false),
        (policy(Base::Public, &["*.a.com"], &["0.0.0.0/0", "::/0"]), "x.a.com", true),
        (policy(Base::Public, &["*.a.com"], &["*"]), "secret.evil.com", false),
        (policy(Base::Public, &[], &["0.0.0.0/0"]), "a.com", true),
        (policy(Base::Public, &[], &["a.com"]), "a.com", false),
        (policy(Base::Public, &[], &["a.com:25"]), "a.com", true),
    ] {
        assert_eq!(may_ask(&policy, &name.parse().unwrap()).is_allowed(), expected, "{policy:?} {name}");
    }
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
        any::<u128>().prop_map(|bits| IpAddr::V6((bits >> 3 | 1 << 125).into())),
        any::<u32>().prop_map(|bits| IpAddr::V6((0xffff_0000_0000 | u128::from(bits)).into())),
        proptest::sample::select(vec!["1.1.1.1", "8.8.8.8", "10.0.0.1", "169.254.169.254", "2606:4700::1"])
            .prop_map(|text| text.parse().unwrap()),
    ]
}

fn any_entry() -> impl Strategy<Value = Entry> {
    proptest::sample::select(vec![
        "a.com",
        "*.a.com",
        "a.com:443",
        "*.com:80",
        "0.0.0.0/0",
        "::/0",
        "1.0.0.0/8",
        "8.8.8.8:53",
        "2000::/3",
        "*",
        "*:443",
        "10.0.0.0/8",
        "127.0.0.1",
        "169.254.169.254:80",
        "fd00::/8",
    ])
    .prop_map(|text| text.parse().unwrap())
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let base = proptest::sample::select(vec![Base::None, Base::Web, Base::Public]);
    let list = || proptest::collection::vec(any_entry(), 0..6);
    (base, list(), list()).prop_map(|(base, allow, deny)| Policy::new(base, allow, deny).unwrap())
}

fn any_destination() -> impl Strategy<Value = Destination> {
    let name = proptest::option::of(proptest::sample::select(vec!["a.com", "b.a.com", "c.org"]));
    let port = proptest::sample::select(vec![22u16, 53, 80, 443, 8080]);
    (name, any_address(), port).prop_map(|(name, address, port)| Destination {
        name: name.map(|n| n.parse().unwrap()),
        address,
        port,
    })
}

proptest! {
    #[test]
    fn no_policy_opens_a_wall(policy in any_policy(), destination in any_destination()) {
        let walls = Walls::default();
        if walls.pass(destination.address).is_err() {
            let decision = decide(&policy, &walls, &destination);
            let walled = matches!(decision, Decision::Refuse { rule: Rule::Never(_) });
            prop_assert!(walled);
        }
    }

    #[test]
    fn a_refusal_names_a_rule_of_the_policy(policy in any_policy(), destination in any_destination()) {
        match decide(&policy, &Walls::default(), &destination) {
            Decision::Refuse { rule: Rule::Deny(entry) } => prop_assert!(policy.deny().contains(&entry)),
            Decision::Allow { rule: Rule::Allow(entry) } => prop_assert!(policy.allow().contains(&entry)),
            Decision::Refuse { rule: Rule::Base(base) } | Decision::Allow { rule: Rule::Base(base) } => {
                prop_assert_eq!(base, policy.base());
            }
            Decision::Refuse { rule: Rule::Never(class) } => prop_assert_ne!(class, Class::Public),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn allowing_more_never_closes_and_denying_more_never_opens(
        policy in any_policy(), more in any_entry(), destination in any_destination(),
    ) {
        let walls = Walls::default();
        let before = decide(&policy, &walls, &destination).is_allowed();
        let mut allow = policy.allow().to_vec();
        allow.push(more.clone());
        let wider = Policy::new(policy.base(), allow, policy.deny().to_vec()).unwrap();
        prop_assert!(!before || decide(&wider, &walls, &destination).is_allowed());
        let mut deny = policy.deny().to_vec();
        deny.push(more);
        let narrower = Policy::new(policy.base(), policy.allow().to_vec(), deny).unwrap();
        prop_assert!(before || !decide(&narrower, &walls, &destination).is_allowed());
    }

    #[test]
    fn allow_beats_deny(policy in any_policy(), destination in any_destination()) {
        let walls = Walls::default();
        let open = Policy::new(policy.base(), policy.allow().to_vec(), vec![]).unwrap();
        if matches!(decide(&open, &walls, &destination), Decision::Allow { rule: Rule::Allow(_) }) {
            prop_assert!(decide(&policy, &walls, &destination).is_allowed());
        }
    }

    #[test]
    fn the_spelling_of_an_address_changes_nothing(policy in any_policy(), destination in any_destination()) {
        let walls = Walls::default();
        if let IpAddr::V4(v4) = destination.address {
            let mapped = Destination { address: IpAddr::V6(v4.to_ipv6_mapped()), ..destination.clone() };
            prop_assert_eq!(decide(&policy, &walls, &mapped), decide(&policy, &walls, &destination));
        }
    }

    #[test]
    fn where_no_name_is_needed_no_name_changes_the_answer(
        policy in any_policy(), destination in any_destination(),
    ) {
        let walls = Walls::default();
        if !needs_name(&policy, &walls, destination.address, destination.port) {
            let nameless = Destination { name: None, ..destination.clone() };
            prop_assert_eq!(
                decide(&policy, &walls, &nameless).is_allowed(),
                decide(&policy, &walls, &destination).is_allowed()
            );
        }
    }

    #[test]
    fn what_a_name_opens_may_be_asked_for(policy in any_policy(), destination in any_destination()) {
        if let Some(name) = &destination.name
            && decide(&policy, &Walls::default(), &destination).is_allowed_by_name()
        {
            prop_assert!(may_ask(&policy, name).is_allowed());
        }
    }
}

/// The walls of a machine with two mirrors, and the stand-ins of these.
fn mirrored() -> (Walls, [String; 2]) {
    let mirror = |name: &str, ports: &[u16]| Mirror {
        name: name.parse().unwrap(),
        ports: ports.iter().copied().collect(),
        address: None,
    };
    let mirrors = Mirrors::new([mirror("pypi.corp.test", &[443, 3141]), mirror("deb.corp.test", &[80])]);
    let walls = Walls::new(["10.0.0.9".parse().unwrap()]).with_mirrors(mirrors.unwrap());
    let stand_in = |name: &str| walls.mirrors().named(&name.parse().unwrap()).unwrap().0.to_string();
    let stand_ins = [stand_in("pypi.corp.test"), stand_in("deb.corp.test")];
    (walls, stand_ins)
}

#[test]
fn a_mirror_is_judged_by_its_own_name_at_its_own_ports() {
    let (walls, [pypi, deb]) = mirrored();
    let none = policy(Base::None, &[], &[]);
    let web = policy(Base::Web, &[], &[]);
    let public = policy(Base::Public, &[], &[]);
    for (policy, name, address, port, expected) in [
        (&none, "", &pypi, 443, "no base:none"),
        (&web, "", &pypi, 443, "yes base:web"),
        // `web` is two ports of public hosts; a mirror has its own.
        (&web, "", &pypi, 3141, "yes base:web"),
        (&public, "", &deb, 80, "yes base:public"),
        // Another port, another address of the block, and what is private.
        (&public, "", &deb, 443, "no never:benchmarking"),
        (&public, "", &pypi, 80, "no never:benchmarking"),
        (&public, "pypi.corp.test", &"198.19.255.255".into(), 443, "no never:benchmarking"),
        (&public, "pypi.corp.test", &"10.0.0.1".into(), 443, "no never:private"),
        (&public, "pypi.corp.test", &"169.254.169.254".into(), 80, "no never:metadata"),
        // The sandbox's claim of a name is not asked.
        (&policy(Base::Web, &[], &["pypi.corp.test"]), "other.test", &pypi, 443, "no deny:pypi.corp.test"),
        (&policy(Base::Web, &[], &["*.corp.test:443"]), "", &pypi, 443, "no deny:*.corp.test:443"),
        (&policy(Base::Web, &[], &["*.corp.test:443"]), "", &pypi, 3141, "yes base:web"),
        // Deny wins where it names the mirror, also over allow.
        (&policy(Base::Public, &["pypi.corp.test"], &["*.corp.test"]), "", &pypi, 443, "no deny:*.corp.test"),
        (&policy(Base::Public, &["*"], &["pypi.corp.test"]), "", &pypi, 443, "no deny:pypi.corp.test"),
        // A list of allowed names, as E2B writes it and as we do.
        (
            &policy(Base::Public, &["deb.corp.test"], &["0.0.0.0/0", "::/0"]),
            "",
            &deb,
            80,
            "yes allow:deb.corp.test",
        ),
        (
            &policy(Base::Public, &["deb.corp.test"], &["0.0.0.0/0", "::/0"]),
            "",
            &pypi,
            443,
            "no deny:0.0.0.0/0",
        ),
        (&policy(Base::Public, &["deb.corp.test"], &["*"]), "", &pypi, 443, "no deny:*"),
        (&policy(Base::None, &["deb.corp.test:80"], &[]), "", &deb, 80, "yes allow:deb.corp.test:80"),
        (&policy(Base::None, &["deb.corp.test:443"], &[]), "", &deb, 80, "no base:none"),
        (&policy(Base::None, &["*"], &[]), "", &deb, 80, "yes allow:*"),
        // Its real address means nothing to lists.
        (&policy(Base::None, &["10.0.0.0/8"], &[]), "", &deb, 80, "no base:none"),
        (&policy(Base::Web, &[], &["10.0.0.0/8"]), "", &deb, 80, "yes base:web"),
    ] {
        let found = match decide(policy, &walls, &to(name, address, port)) {
            Decision::Allow { rule } => format!("yes {rule}"),
            Decision::Refuse { rule } => format!("no {rule}"),
        };
        assert_eq!(found, expected, "{policy:?} {name} {address} {port}");
    }
}

#[test]
fn a_sandbox_learns_a_stand_in_only_if_it_may_use_it() {
    let (walls, [pypi, _]) = mirrored();
    let name: HostName = "pypi.corp.test".parse().unwrap();
    for (policy, expected) in [
        (policy(Base::None, &[], &[]), false),
        (policy(Base::Web, &[], &[]), true),
        (policy(Base::Web, &[], &["pypi.corp.test:443"]), true),
        (policy(Base::Web, &[], &["pypi.corp.test"]), false),
        (policy(Base::None, &["pypi.corp.test:3141"], &[]), true),
        (policy(Base::Public, &[], &["0.0.0.0/0", "::/0"]), false),
    ] {
        let (stand_in, decision) = may_ask_mirror(&policy, &walls, &name).unwrap();
        assert_eq!((stand_in.to_string(), decision.is_allowed()), (pypi.clone(), expected), "{policy:?}");
    }
    assert_eq!(may_ask_mirror(&Policy::of(Base::Web), &walls, &"corp.test".parse().unwrap()), None);
}
