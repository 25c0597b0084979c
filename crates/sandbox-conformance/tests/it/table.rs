//! The table of cases keeps its own rules.

use std::collections::BTreeSet;

use sandbox_conformance::{Ability, Level, Need, all};
use sandbox_core::{Caps, NetworkMode, SnapshotMode, Support};

/// Everything declared.
fn full() -> Caps {
    let yes = Support::Yes;
    let mut caps = Caps::default();
    caps.snapshot = SnapshotMode::FsCow;
    caps.staging_root = Some("/staging".into());
    caps.shell = Some("sh".into());
    for field in [
        &mut caps.workdir,
        &mut caps.runtime_image,
        &mut caps.runtime_compose,
        &mut caps.stdin,
        &mut caps.pty,
        &mut caps.dial,
        &mut caps.exact_signals,
        &mut caps.users,
        &mut caps.binds,
        &mut caps.detached,
        &mut caps.limits.memory,
        &mut caps.limits.cpu,
        &mut caps.limits.pids,
        &mut caps.limits.disk,
        &mut caps.isolation.root,
        &mut caps.isolation.processes,
        &mut caps.isolation.network,
        &mut caps.isolation.unprivileged_user,
        &mut caps.isolation.syscall_filter,
    ] {
        *field = yes.clone();
    }
    caps.networks = vec![NetworkMode::None, NetworkMode::Host, NetworkMode::Bridge];
    caps
}

#[test]
fn ids_are_unique_facts_of_a_group() {
    let mut seen = BTreeSet::new();
    for case in all() {
        assert!(seen.insert(case.id), "{} is there twice", case.id);
        let (group, fact) = case.id.split_once("::").unwrap();
        let word = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        };
        assert!(
            word(group) && word(fact) && fact.contains('_'),
            "{}",
            case.id
        );
        assert!(!case.rules.is_empty(), "{} proves no rule", case.id);
        assert!(
            case.since >= 1 && case.deadline.as_secs() >= 30,
            "{}",
            case.id
        );
    }
}

#[test]
fn a_backend_that_declares_nothing_meets_every_negative_twin_and_no_positive_case() {
    let none = Caps::default();
    for case in all() {
        match case.level() {
            Level::Core | Level::Negative => {
                assert_eq!(case.skipped_by(&none), None, "{}", case.id)
            }
            Level::Extended => assert!(case.skipped_by(&none).is_some(), "{}", case.id),
        }
    }
}

#[test]
fn a_backend_that_declares_everything_meets_every_positive_case_and_no_twin() {
    let full = full();
    for case in all() {
        match case.level() {
            Level::Core | Level::Extended => {
                assert_eq!(case.skipped_by(&full), None, "{}", case.id)
            }
            Level::Negative => assert!(case.skipped_by(&full).is_some(), "{}", case.id),
        }
    }
}

#[test]
fn a_need_and_its_twin_never_both_hold() {
    for caps in [Caps::default(), full()] {
        for ability in Ability::ALL {
            let has = Need::Has(*ability).unmet(&caps).is_none();
            let lacks = Need::Lacks(*ability).unmet(&caps).is_none();
            assert!(has != lacks, "{ability:?}");
        }
    }
}

#[test]
fn each_ability_has_a_positive_case_and_a_negative_twin() {
    // Sandboxes from images, compose files and snapshots get their positive cases with the backends that have them. A missing
    // staging root or wall is nothing that could be asked for, so that nothing can be refused.
    let later = [
        Ability::Image,
        Ability::Compose,
        Ability::Snapshot,
        Ability::NetworkHost,
        Ability::NetworkBridge,
    ];
    let nothing_to_refuse = [
        Ability::StagingRoot,
        Ability::OwnRoot,
        Ability::OwnProcesses,
        Ability::OwnNetwork,
        Ability::UnprivilegedUser,
        Ability::SyscallFilter,
    ];
    let used: BTreeSet<String> = all()
        .iter()
        .flat_map(|case| case.needs.iter().map(ToString::to_string))
        .collect();
    for ability in Ability::ALL {
        let positive = used.contains(&Need::Has(*ability).to_string());
        let negative = used.contains(&Need::Lacks(*ability).to_string());
        assert_eq!(
            positive,
            !later.contains(ability),
            "the positive case of {ability:?}"
        );
        assert_eq!(
            negative,
            !nothing_to_refuse.contains(ability),
            "the twin of {ability:?}"
        );
    }
}
