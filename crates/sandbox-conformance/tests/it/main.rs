//! The suite itself is tested: a backend that keeps the contract passes, a planted fault fails exactly the cases that name it.

mod contract;
mod mutants;
mod plain;
mod table;
