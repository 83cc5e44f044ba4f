// Package doctor is the command tandem doctor: it looks at a P/D pool from outside and says what does not fit together.
//
// In goes where the pool is: an endpoints file, a running tandem up, a picker, or a cluster; and the addresses of what cannot
// be found from there. Out comes one line for each check: ok, warn, FAIL or unknown, what was seen, and what to do. The table
// of checks is in checks.go.
//
// A check tells what it saw, and unknown where it could not see: most engines do not show their arguments, and what is not
// shown is not guessed. What is broken is told once: an engine that does not answer is left out by the checks that would
// need its answer.
//
// It changes nothing. Engines are asked for pages, one time each, and for a completion without a prompt, which they refuse;
// --probe allows one short request for each pair. The dearest page is a vLLM's /server_info, which is there in developer
// mode and tells the arguments. It reads no prompts and shows none. Everything is looked at in parallel, with a deadline for each look, so a pool that does not answer is a finding
// and not a wait.
package doctor
