//! From rows to one verdict: a pure function.

use std::fmt;

use crate::report::Row;

/// What a case came to. The order is from best to worst: of repeated runs the worst counts, and nothing improves a status later.
///
/// ```
/// use sandbox_conformance::Status;
/// assert!(Status::Pass < Status::Fail && Status::Fail < Status::Error);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// The fact holds.
    Pass,
    /// The backend does not declare what the case needs.
    Skipped,
    /// It failed, as is known and justified.
    Waived,
    /// The base lacks a program that the case needs; nothing is known.
    Unavailable,
    /// The backend breaks a rule.
    Fail,
    /// The suite's own fault.
    Error,
}

impl Status {
    /// Every status, from best to worst.
    ///
    /// ```
    /// assert_eq!(sandbox_conformance::Status::ALL.len(), 6);
    /// ```
    pub const ALL: [Status; 6] = [
        Status::Pass,
        Status::Skipped,
        Status::Waived,
        Status::Unavailable,
        Status::Fail,
        Status::Error,
    ];

    /// The word of the reports.
    ///
    /// ```
    /// assert_eq!(sandbox_conformance::Status::Pass.word(), "pass");
    /// ```
    pub fn word(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Skipped => "skipped",
            Status::Waived => "waived",
            Status::Unavailable => "unavailable",
            Status::Fail => "fail",
            Status::Error => "error",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// What a whole run came to.
///
/// ```
/// assert_eq!(sandbox_conformance::Verdict::Success.exit_code(), 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// At least one case passed, and none is worse than waived.
    Success,
    /// A case failed, or a required one did not run.
    Failed,
    /// No case passed, so that nothing is known.
    NothingPassed,
    /// A case could not be tried here.
    Incomplete,
    /// The suite itself failed.
    Error,
}

impl Verdict {
    /// The exit code of a runner: 0, 1, 3, 4 or 5, in the order of the variants (2 is left to wrong command lines).
    ///
    /// ```
    /// assert_eq!(sandbox_conformance::Verdict::NothingPassed.exit_code(), 3);
    /// ```
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Success => 0,
            Verdict::Failed => 1,
            Verdict::NothingPassed => 3,
            Verdict::Incomplete => 4,
            Verdict::Error => 5,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Success => "success",
            Verdict::Failed => "failed",
            Verdict::NothingPassed => "nothing passed",
            Verdict::Incomplete => "incomplete",
            Verdict::Error => "error of the suite",
        })
    }
}

/// The verdict of a run's rows. The worst row decides; a required row that was not run is a failure; nothing passed is no success.
///
/// ```
/// use sandbox_conformance::{Verdict, verdict};
/// assert_eq!(verdict(&[]), Verdict::NothingPassed);
/// ```
pub fn verdict(rows: &[Row]) -> Verdict {
    let missed =
        |row: &Row| row.required && matches!(row.status, Status::Skipped | Status::Unavailable);
    let worst = rows
        .iter()
        .map(|row| {
            if missed(row) {
                Status::Fail
            } else {
                row.status
            }
        })
        .max();
    match worst {
        Some(Status::Error) => Verdict::Error,
        Some(Status::Fail) => Verdict::Failed,
        Some(Status::Unavailable) => Verdict::Incomplete,
        _ if rows.iter().any(|row| row.status == Status::Pass) => Verdict::Success,
        _ => Verdict::NothingPassed,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(status: Status, required: bool) -> Row {
        Row {
            id: "group::fact",
            rules: &["RULE-1"],
            status,
            reason: String::new(),
            duration: Duration::ZERO,
            required,
        }
    }

    #[test]
    fn the_worst_row_decides_and_nothing_passed_is_no_success() {
        use Status::*;
        let table: &[(&[Status], Verdict)] = &[
            (&[], Verdict::NothingPassed),
            (&[Pass], Verdict::Success),
            (&[Skipped], Verdict::NothingPassed),
            (&[Waived], Verdict::NothingPassed),
            (&[Skipped, Waived], Verdict::NothingPassed),
            (&[Unavailable], Verdict::Incomplete),
            (&[Fail], Verdict::Failed),
            (&[Error], Verdict::Error),
            (&[Pass, Skipped], Verdict::Success),
            (&[Skipped, Pass], Verdict::Success),
            (&[Pass, Waived], Verdict::Success),
            (&[Pass, Unavailable], Verdict::Incomplete),
            (&[Pass, Fail], Verdict::Failed),
            (&[Fail, Pass], Verdict::Failed),
            (&[Fail, Unavailable], Verdict::Failed),
            (&[Fail, Error], Verdict::Error),
            (&[Error, Pass, Pass], Verdict::Error),
        ];
        for (statuses, expected) in table {
            let rows: Vec<Row> = statuses.iter().map(|s| row(*s, false)).collect();
            assert_eq!(verdict(&rows), *expected, "{statuses:?}");
        }
    }

    #[test]
    fn a_required_row_that_did_not_run_is_a_failure() {
        let table = [
            (Status::Pass, Verdict::Success),
            (Status::Skipped, Verdict::Failed),
            (Status::Waived, Verdict::Success),
            (Status::Unavailable, Verdict::Failed),
            (Status::Fail, Verdict::Failed),
            (Status::Error, Verdict::Error),
        ];
        for (status, expected) in table {
            let rows = [row(Status::Pass, false), row(status, true)];
            assert_eq!(verdict(&rows), expected, "{status}");
        }
    }

    #[test]
    fn only_success_exits_with_zero_and_all_codes_differ() {
        let codes: Vec<u8> = [
            Verdict::Success,
            Verdict::Failed,
            Verdict::NothingPassed,
            Verdict::Incomplete,
            Verdict::Error,
        ]
        .into_iter()
        .map(Verdict::exit_code)
        .collect();
        assert_eq!(codes, [0, 1, 3, 4, 5]);
    }

    #[test]
    fn statuses_are_ordered_from_best_to_worst() {
        assert!(Status::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
