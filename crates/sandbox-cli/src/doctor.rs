//! `sandbox doctor`: what this machine can isolate.

use std::io::{self, Write};

use sandbox_native::{DoctorReport, Layer, LayerState, Native};
use serde_json::json;

use crate::args::Doctor;
use crate::failure::Failure;

/// Prints the report; 0 if sandboxes can be made here, else 1.
pub(crate) fn doctor(options: &Doctor) -> Result<u8, Failure> {
    let report = Native::doctor()?;
    let text = if options.json {
        format!("{:#}\n", json(&report))
    } else {
        table(&report)
    };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            "the report could not be written",
            error.to_string(),
            "see where standard output goes",
        )),
        _ => Ok(u8::from(!report.usable)),
    }
}

fn state(layer: &Layer) -> &'static str {
    match layer.state {
        LayerState::Enforced => "enforced",
        LayerState::Degraded => "degraded",
        LayerState::Missing => "missing",
    }
}

fn json(report: &DoctorReport) -> serde_json::Value {
    let layers: Vec<_> = report
        .layers
        .iter()
        .map(|layer| {
            json!({
                "name": layer.name,
                "state": state(layer),
                "detail": layer.detail,
                "remedy": layer.remedy,
            })
        })
        .collect();
    json!({ "usable": report.usable, "layers": layers })
}

fn table(report: &DoctorReport) -> String {
    let widest = |text: fn(&Layer) -> usize| report.layers.iter().map(text).max().unwrap_or(0);
    let name_width = widest(|layer| layer.name.chars().count()).max("layer".len());
    let mut lines = vec![format!("{:name_width$}  state     detail", "layer")];
    for layer in &report.layers {
        lines.push(format!(
            "{:name_width$}  {:8}  {}",
            layer.name,
            state(layer),
            layer.detail
        ));
        if let Some(remedy) = &layer.remedy {
            lines.push(format!("{:name_width$}            fix: {remedy}", ""));
        }
    }
    lines.push(String::new());
    lines.push(
        if report.usable {
            "Sandboxes can be made on this machine."
        } else {
            "No sandbox can be made on this machine; nothing would be run. Apply the fixes above."
        }
        .into(),
    );
    lines.push(String::new());
    lines.join("\n")
}
