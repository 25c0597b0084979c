//! EXEC-17: what hostile commands cannot break.

use std::time::Duration;

use sandbox_core::{Cmd, Limits};

use super::kill::zombies;
use crate::case::{Done, cases, ensure_eq};
use crate::context::{Context, eventually, marked, marker, within};
use crate::needs::{Ability, Need};

cases! { "survive":
    killing_every_process_ends_only_commands ["EXEC-17"] [Need::Has(Ability::OwnProcesses)];
    killing_the_first_process_has_no_effect ["EXEC-17"] [Need::Has(Ability::OwnProcesses)];
    stopping_every_process_stops_no_service ["EXEC-17"] [Need::Has(Ability::OwnProcesses)];
    thousands_of_orphans_leave_no_zombies ["EXEC-17", "EXEC-11"] [Need::Has(Ability::OwnProcesses)] 180;
    fork_bomb_leaves_the_sandbox_usable ["EXEC-17", "LIM-1"] [Need::Has(Ability::LimitPids)] 120;
}

async fn killing_every_process_ends_only_commands(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let mut victim = place.start(Cmd::argv(["sleep", &marker])).await?;
    place.appears(&marker, 1).await?;
    let result = place.sh("kill -9 -1; echo still here").await?;
    ensure_eq!(
        &result.stdout[..],
        b"still here\n",
        "output of the command that killed the rest"
    );
    let ended = within(Duration::from_secs(5), "the victim's result", victim.wait()).await?;
    ensure_eq!(ended.code(), Some(137), "the victim's code");
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    place.write("file", "x").await?;
    ensure_eq!(place.read("file").await?, "x", "a file afterwards");
    Ok(())
}

async fn killing_the_first_process_has_no_effect(cx: Context) -> Done {
    let place = cx.place().await?;
    for signal in [
        "KILL", "STOP", "TERM", "HUP", "INT", "QUIT", "USR1", "ABRT", "SEGV", "PIPE", "ALRM",
    ] {
        place.sh(&format!("kill -{signal} 1")).await?;
        let run = place.out("echo on");
        let said = within(
            Duration::from_secs(5),
            &format!("a command after SIG{signal}"),
            run,
        )
        .await??;
        ensure_eq!(said, "on\n", "output after SIG{signal} to process 1");
    }
    Ok(())
}

async fn stopping_every_process_stops_no_service(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let mut victim = place.start(Cmd::argv(["sleep", &marker])).await?;
    place.appears(&marker, 1).await?;
    place.sh("kill -STOP -1").await?;
    ensure_eq!(
        within(
            Duration::from_secs(5),
            "the next command",
            place.out("echo on")
        )
        .await??,
        "on\n",
        "output"
    );
    victim.kill();
    within(
        Duration::from_secs(5),
        "the stopped command's end",
        victim.wait(),
    )
    .await?;
    Ok(())
}

async fn thousands_of_orphans_leave_no_zombies(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "i=0; while [ $i -lt 5000 ]; do (true &); i=$((i + 1)); done; echo done";
    let run = place.out(script);
    ensure_eq!(
        within(Duration::from_secs(120), "5000 orphans", run).await??,
        "done\n",
        "output"
    );
    eventually!(
        Duration::from_secs(20),
        "no zombies to be left",
        Ok(zombies(&place).await? == 0),
    )?;
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    Ok(())
}

async fn fork_bomb_leaves_the_sandbox_usable(cx: Context) -> Done {
    let mut spec = cx.spec()?;
    spec.limits = Limits {
        pids: Some(64),
        ..Limits::default()
    };
    let place = cx.place_of(spec).await?;
    let other = cx.place().await?;
    let marker = marker();
    // Each generation doubles; what cannot fork any more tries again.
    let bomb = r#"bomb() { while :; do bomb & bomb; done; }; bomb"#;
    let mut execution = place.start(marked(bomb, &marker)).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure_eq!(
        other.out("echo undisturbed").await?,
        "undisturbed\n",
        "another sandbox meanwhile"
    );
    execution.kill();
    within(
        Duration::from_secs(10),
        "the bomb's result",
        execution.wait(),
    )
    .await?;
    eventually!(
        Duration::from_secs(10),
        "a command to work after the bomb",
        {
            Ok(place
                .sh("echo on")
                .await
                .is_ok_and(|result| result.success()))
        },
    )?;
    place.gone(&marker, Duration::from_secs(5)).await
}
