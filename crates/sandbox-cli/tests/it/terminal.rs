//! `--tty` with a real terminal around it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{Who, each, send};

/// The binary on a terminal that the test holds the other end of.
struct Session {
    child: Child,
    keyboard: File,
    terminal: OwnedFd,
    screen: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Session {
    fn start(who: &Who, arguments: &[&str]) -> Session {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(&name, flags, Mode::empty()).unwrap();
        let session_size = Winsize {
            ws_row: 33,
            ws_col: 99,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, session_size).unwrap();
        let mut all = vec!["run", "--tty"];
        all.extend(arguments);
        let child = who
            .command(&all)
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal.try_clone().unwrap())
            .spawn()
            .unwrap();
        let mut screen = File::from(master.try_clone().unwrap());
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Ends when the terminal's last user is gone.
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Session {
            child,
            keyboard: File::from(master),
            terminal,
            screen: receiver,
            seen: String::new(),
        }
    }

    fn wait_for(&mut self, wanted: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.seen.contains(wanted) {
            let left = deadline.saturating_duration_since(Instant::now());
            let data = self.screen.recv_timeout(left);
            let data = data.unwrap_or_else(|_| panic!("no {wanted:?} in {:?}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&data));
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keyboard, size).unwrap();
        // The kernel tells the foreground group of a controlling terminal; this one controls nobody.
        send(&self.child, Signal::WINCH);
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal)
            .unwrap()
            .local_modes
            .contains(LocalModes::ICANON)
    }

    fn end(mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= deadline {
                self.child.kill().unwrap();
                panic!("the command line did not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let code = status.code();
        assert!(!self.is_raw(), "the terminal was left raw");
        code
    }
}

#[test]
fn the_command_has_a_terminal_of_the_same_size() {
    each(|who| {
        let mut session =
            Session::start(who, &["-c", "test -t 0 && test -t 1 && stty size; exit 3"]);
        session.wait_for("33 99");
        assert_eq!(session.end(), Some(3));
    });
}

#[test]
fn keys_go_to_the_command_and_control_c_interrupts_it() {
    each(|who| {
        let script = "trap 'echo caught; exit 7' INT; echo up; read line; echo got $line; while :; do sleep 0.05; done";
        let mut session = Session::start(who, &["-c", script]);
        session.wait_for("up");
        assert!(session.is_raw());
        session.press(b"hello\r");
        session.wait_for("got hello");
        session.press(b"\x03");
        session.wait_for("caught");
        assert_eq!(session.end(), Some(7));
    });
}

#[test]
fn a_resize_is_passed_on() {
    each(|who| {
        // A shell without a trap of its own may lose the interrupt if its child ends at the same moment.
        let script =
            "trap 'stty size' WINCH; trap 'exit 130' INT; echo up; while :; do sleep 0.05; done";
        let mut session = Session::start(who, &["-c", script]);
        session.wait_for("up");
        session.resize(44, 111);
        session.wait_for("44 111");
        session.press(b"\x03");
        assert_eq!(session.end(), Some(130));
    });
}

#[test]
fn the_terminal_is_restored_however_it_ends() {
    each(|who| {
        let mut session = Session::start(who, &["-c", "echo up; sleep 60"]);
        session.wait_for("up");
        send(&session.child, Signal::TERM);
        assert_eq!(session.end(), Some(143));

        let session = Session::start(who, &["--timeout", "300ms", "-c", "sleep 60"]);
        assert_eq!(session.end(), Some(124));

        let session = Session::start(who, &["--", "no-such-program"]);
        assert_eq!(session.end(), Some(127));
    });
}
