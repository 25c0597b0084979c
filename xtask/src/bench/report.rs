//! What was measured, against what, and whether it is enough.

use std::process::ExitCode;
use std::time::Duration;

use sandbox_core::Result;
use serde_json::json;

use super::Bench;

/// Which side of the goal is good.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// Only for information.
    None,
}

pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) goal: Goal,
    pub(super) unit: &'static str,
    /// Absent if the peer is.
    pub(super) figure: Option<f64>,
    /// The figures behind it.
    pub(super) detail: String,
}

impl Row {
    /// Our time as a multiple of the peer's.
    pub(super) fn ratio(
        name: &'static str,
        goal: Goal,
        ours: Duration,
        peer: Option<Duration>,
    ) -> Row {
        Row {
            name,
            goal,
            unit: "×",
            figure: peer.map(|peer| ours.as_secs_f64() / peer.as_secs_f64()),
            detail: format!(
                "{}, peer {}",
                time(ours),
                peer.map_or("absent".into(), time)
            ),
        }
    }

    /// Our rate as a multiple of the peer's.
    pub(super) fn rates(
        name: &'static str,
        goal: Goal,
        unit: &str,
        ours: f64,
        peer: Option<f64>,
    ) -> Row {
        Row {
            name,
            goal,
            unit: "×",
            figure: peer.map(|peer| ours / peer),
            detail: format!(
                "{ours:.0} {unit}, peer {}",
                peer.map_or("absent".into(), |peer| format!("{peer:.0} {unit}"))
            ),
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.goal, self.figure) {
            (_, None) => "no peer",
            (Goal::None, _) => "-",
            (Goal::AtMost(most), Some(figure)) if figure <= most => "met",
            (Goal::AtLeast(least), Some(figure)) if figure >= least => "met",
            _ => "MISSED",
        }
    }

    fn goal(&self) -> String {
        match self.goal {
            Goal::AtMost(most) => format!("≤ {most} {}", self.unit),
            Goal::AtLeast(least) => format!("≥ {least} {}", self.unit),
            Goal::None => "-".into(),
        }
    }

    fn figure(&self) -> String {
        self.figure
            .map_or("-".into(), |figure| format!("{figure:.2} {}", self.unit))
    }
}

/// A time with a unit that suits it.
pub(super) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 1e-3 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.2} ms", seconds * 1e3)
    } else {
        format!("{seconds:.2} s")
    }
}

pub(super) struct Report {
    machine: String,
    rows: Vec<Row>,
    failures: Vec<String>,
}

impl Report {
    pub(super) fn new(bench: &Bench) -> Report {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        Report {
            machine: format!(
                "{cpus} CPUs, Linux {}, files on {}, bwrap {}",
                kernel.trim(),
                if bench.on_tmpfs { "tmpfs" } else { "disk" },
                if bench.peers.has_bwrap() {
                    "present"
                } else {
                    "absent"
                },
            ),
            rows: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, group: &str, rows: Result<Vec<Row>>) {
        match rows {
            Ok(rows) => self.rows.extend(rows),
            Err(error) => self.failures.push(format!("{group}: {error}")),
        }
    }

    pub(super) fn print(&self, as_json: bool) {
        if as_json {
            let rows: Vec<_> = self
                .rows
                .iter()
                .map(|row| {
                    json!({
                        "name": row.name, "goal": row.goal(), "figure": row.figure, "unit": row.unit,
                        "verdict": row.verdict(), "detail": row.detail,
                    })
                })
                .collect();
            println!(
                "{:#}",
                json!({ "machine": self.machine, "rows": rows, "failures": self.failures })
            );
            return;
        }
        println!("{}", self.machine);
        println!(
            "{:44} {:>12} {:>12}  {:8} figures",
            "row", "goal", "figure", "verdict"
        );
        for row in &self.rows {
            println!(
                "{:44} {:>12} {:>12}  {:8} {}",
                row.name,
                row.goal(),
                row.figure(),
                row.verdict(),
                row.detail
            );
        }
        for failure in &self.failures {
            println!("not measured: {failure}");
        }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        if self.failures.is_empty() && !self.rows.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(goal: Goal, figure: Option<f64>) -> Row {
        Row {
            name: "row",
            goal,
            unit: "×",
            figure,
            detail: String::new(),
        }
    }

    #[test]
    fn a_verdict_is_met_on_the_goal_and_missed_beyond_it() {
        for (goal, figure, verdict) in [
            (Goal::AtMost(1.0), Some(1.0), "met"),
            (Goal::AtMost(1.0), Some(1.01), "MISSED"),
            (Goal::AtMost(1.0), Some(f64::NAN), "MISSED"),
            (Goal::AtLeast(1.5), Some(1.5), "met"),
            (Goal::AtLeast(1.5), Some(1.49), "MISSED"),
            (Goal::AtMost(1.0), None, "no peer"),
            (Goal::None, Some(9.0), "-"),
        ] {
            assert_eq!(row(goal, figure).verdict(), verdict, "{figure:?}");
        }
    }

    #[test]
    fn a_row_that_was_not_measured_is_a_failure() {
        let mut report = Report {
            machine: String::new(),
            rows: Vec::new(),
            failures: Vec::new(),
        };
        assert_eq!(
            report.exit_code(),
            ExitCode::FAILURE,
            "nothing was measured"
        );
        report.add("a", Ok(vec![row(Goal::None, Some(1.0))]));
        assert_eq!(report.exit_code(), ExitCode::SUCCESS);
        report.add("b", Err(sandbox_core::Error::cancelled()));
        assert_eq!(report.exit_code(), ExitCode::FAILURE);
    }
}
