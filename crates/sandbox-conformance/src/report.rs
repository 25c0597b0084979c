//! What a run found: a line per case, a summary, and JSON.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::verdict::{Status, Verdict, verdict};

/// What one case came to. As text it is one line of the table.
///
/// ```
/// use sandbox_conformance::{Row, Status};
/// # use std::time::Duration;
/// # let row = Row {
/// #     id: "exec::exit_code_is_kept", rules: &["EXEC-6"], status: Status::Fail,
/// #     reason: "got 1, expected 7".into(), duration: Duration::from_millis(12), required: false,
/// # };
/// assert!(row.to_string().contains("got 1, expected 7"));
/// ```
#[derive(Debug, Clone)]
pub struct Row {
    /// The case's id.
    pub id: &'static str,
    /// The rules that it proves.
    pub rules: &'static [&'static str],
    /// What it came to.
    pub status: Status,
    /// Why it did not pass; empty if it did.
    pub reason: String,
    /// From the making of its backend to the end of its tear-down; the sum of repeated runs.
    pub duration: Duration,
    /// Whether not running it is a failure.
    pub required: bool,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.duration.as_millis();
        write!(f, "{:<11} {millis:>7} ms  {}", self.status, self.id)?;
        if self.status != Status::Pass {
            write!(f, " [{}]", self.rules.join(", "))?;
        }
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

/// What a run found.
///
/// ```
/// use sandbox_conformance::{Report, Verdict};
/// let report = Report::new("native", Vec::new());
/// assert_eq!(report.verdict(), Verdict::NothingPassed);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// The backend's name.
    pub backend: String,
    /// One row per selected case, in the order of the table of cases.
    pub rows: Vec<Row>,
    /// Why no case could be run at all.
    pub failure: Option<String>,
}

impl Report {
    /// A report of these rows.
    ///
    /// ```
    /// assert!(sandbox_conformance::Report::new("x", Vec::new()).failure.is_none());
    /// ```
    pub fn new(backend: impl Into<String>, rows: Vec<Row>) -> Self {
        Report {
            backend: backend.into(),
            rows,
            failure: None,
        }
    }

    /// The verdict: [`Verdict::Error`] if no case could be run at all, else that of the rows.
    ///
    /// ```
    /// use sandbox_conformance::{Report, Verdict};
    /// assert_eq!(Report::new("x", Vec::new()).verdict(), Verdict::NothingPassed);
    /// ```
    pub fn verdict(&self) -> Verdict {
        match self.failure {
            Some(_) => Verdict::Error,
            None => verdict(&self.rows),
        }
    }

    /// How many rows have that status.
    ///
    /// ```
    /// use sandbox_conformance::{Report, Status};
    /// assert_eq!(Report::new("x", Vec::new()).count(Status::Pass), 0);
    /// ```
    pub fn count(&self, status: Status) -> usize {
        self.rows.iter().filter(|row| row.status == status).count()
    }

    /// The end of the terminal's table: what did not pass, the numbers and the verdict.
    ///
    /// ```
    /// let text = sandbox_conformance::Report::new("native", Vec::new()).summary();
    /// assert!(text.contains("native: nothing passed"));
    /// ```
    pub fn summary(&self) -> String {
        let mut text = String::new();
        for status in [Status::Unavailable, Status::Fail, Status::Error] {
            for row in self.rows.iter().filter(|row| row.status == status) {
                text.push_str(&format!("{row}\n"));
            }
        }
        for row in self
            .rows
            .iter()
            .filter(|row| row.required && row.status == Status::Skipped)
        {
            text.push_str(&format!("required but not run: {row}\n"));
        }
        if let Some(failure) = &self.failure {
            text.push_str(&format!("error       {failure}\n"));
        }
        let counts: Vec<String> = Status::ALL
            .into_iter()
            .map(|status| format!("{} {status}", self.count(status)))
            .collect();
        text.push_str(&format!(
            "{}: {} ({} cases: {})\n",
            self.backend,
            self.verdict(),
            self.rows.len(),
            counts.join(", ")
        ));
        text
    }

    /// The whole report: `{backend, verdict, exit_code, failure, counts: {pass, …}, cases: [{id, rules, status, reason,
    /// milliseconds, required}]}`.
    ///
    /// ```
    /// let json = sandbox_conformance::Report::new("native", Vec::new()).to_json();
    /// assert_eq!(json["exit_code"], 3);
    /// assert_eq!(json["counts"]["pass"], 0);
    /// ```
    pub fn to_json(&self) -> Value {
        let counts: serde_json::Map<String, Value> = Status::ALL
            .into_iter()
            .map(|status| (status.word().to_owned(), json!(self.count(status))))
            .collect();
        let cases: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "id": row.id,
                    "rules": row.rules,
                    "status": row.status.word(),
                    "reason": row.reason,
                    "milliseconds": u64::try_from(row.duration.as_millis()).unwrap_or(u64::MAX),
                    "required": row.required,
                })
            })
            .collect();
        json!({
            "backend": self.backend,
            "verdict": self.verdict().to_string(),
            "exit_code": self.verdict().exit_code(),
            "failure": self.failure,
            "counts": counts,
            "cases": cases,
        })
    }
}
