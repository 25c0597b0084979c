//! EXEC-19: users.

use sandbox_core::{Backend, Cmd, ErrorKind, User};

use crate::case::{Done, cases, ensure, ensure_eq};
use crate::context::{Context, refused};
use crate::needs::{Ability, Need};

cases! { "user":
    default_user_can_use_its_home_and_workdir ["EXEC-19"] [];
    ids_of_a_user_are_used ["EXEC-19"] [Need::Has(Ability::Users)];
    name_of_a_user_is_looked_up_inside ["EXEC-19"] [Need::Has(Ability::Users)];
    unknown_user_is_not_started ["EXEC-19"] [Need::Has(Ability::Users)];
    files_belong_to_the_commands_user ["EXEC-19"] [Need::Has(Ability::Users)];
    user_is_held_back_by_modes ["EXEC-19"] [Need::Has(Ability::Users)];
    user_of_the_spec_is_the_default ["EXEC-19"] [Need::Has(Ability::Users)];
    unknown_user_of_a_spec_is_refused ["EXEC-19", "LIFE-6"] [Need::Has(Ability::Users)];
}

async fn default_user_can_use_its_home_and_workdir(cx: Context) -> Done {
    let place = cx.place().await?;
    let said = place.out("echo x >file && cat file && rm file && cd \"$HOME\" && pwd | head -c 1; id -u >/dev/null").await?;
    ensure_eq!(said, "x\n/", "use of the workdir and HOME");
    Ok(())
}

fn ids(uid: u32, gid: Option<u32>) -> User {
    User::Ids { uid, gid }
}

async fn ids_of_a_user_are_used(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "echo $(id -u) $(id -g) $(id -G) $HOME";
    let result = place
        .run(Cmd::shell(script).user(ids(4242, Some(4343))))
        .await?;
    ensure_eq!(
        String::from_utf8_lossy(&result.stdout),
        "4242 4343 4343 /\n",
        "ids, groups and HOME"
    );
    let result = place.run(Cmd::shell("id -u").user(ids(4242, None))).await?;
    ensure_eq!(&result.stdout[..], b"4242\n", "uid alone");
    Ok(())
}

async fn name_of_a_user_is_looked_up_inside(cx: Context) -> Done {
    let place = cx.place().await?;
    let passwd = place.out("cat /etc/passwd").await?;
    let mut looked_up = 0;
    for line in passwd.lines().take(5) {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, _] = fields[..] else {
            continue;
        };
        looked_up += 1;
        let cmd = Cmd::shell("echo $(id -u) $(id -g) $HOME").user(User::Name(name.into()));
        let result = place.run(cmd).await?;
        ensure_eq!(
            String::from_utf8_lossy(&result.stdout),
            format!("{uid} {gid} {home}\n"),
            "ids and HOME of {name}"
        );
    }
    ensure!(
        looked_up > 0,
        "the sandbox has users, but none is in its /etc/passwd"
    );
    Ok(())
}

async fn unknown_user_is_not_started(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd = Cmd::argv(["touch", "touched"]).user(User::Name("no-such-user".into()));
    let error = refused(
        place.start(cmd).await,
        ErrorKind::UserNotFound,
        "an unknown user",
    )?;
    ensure!(
        error.to_string().contains("no-such-user"),
        "the error does not name the user: {error}"
    );
    ensure_eq!(place.list(".").await?.len(), 0, "entries of the workdir");
    Ok(())
}

async fn files_belong_to_the_commands_user(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd = Cmd::shell("umask 022; : >/tmp/of-user; stat -c %u:%g /tmp/of-user")
        .user(ids(4242, Some(4343)));
    let result = place.run(cmd).await?;
    ensure_eq!(&result.stdout[..], b"4242:4343\n", "owner");
    Ok(())
}

async fn user_is_held_back_by_modes(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("echo secret >/tmp/closed; chmod 600 /tmp/closed")
        .await?;
    let result = place
        .run(Cmd::shell("cat /tmp/closed; kill -9 -1; true").user(ids(4242, Some(4343))))
        .await?;
    ensure_eq!(result.stdout.len(), 0, "bytes of another user's file");
    ensure_eq!(
        place.out("cat /tmp/closed").await?,
        "secret\n",
        "the file for its owner"
    );
    Ok(())
}

async fn user_of_the_spec_is_the_default(cx: Context) -> Done {
    let mut spec = cx.spec()?;
    spec.user = Some(ids(4242, Some(4343)));
    let place = cx.place_of(spec).await?;
    ensure_eq!(
        place
            .out("echo $(id -u):$(id -g); : >mine; rm mine")
            .await?,
        "4242:4343\n",
        "the default user"
    );
    let result = place.run(Cmd::shell("id -u").user(ids(4444, None))).await?;
    ensure_eq!(
        &result.stdout[..],
        b"4444\n",
        "another user for one command"
    );
    Ok(())
}

async fn unknown_user_of_a_spec_is_refused(cx: Context) -> Done {
    let mut spec = cx.spec()?;
    spec.user = Some(User::Name("no-such-user".into()));
    let name = spec.name.clone();
    refused(
        cx.backend().create(spec).await,
        ErrorKind::UserNotFound,
        "a sandbox of an unknown user",
    )?;
    let mut plain = cx.spec()?;
    plain.name = name;
    cx.place_of(plain).await?;
    Ok(())
}
