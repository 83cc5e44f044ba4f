// Package doctor implements the command tandem doctor, which inspects a P/D pool from outside and reports what does not fit
// together.
//
// It takes the place of the pool (an endpoints file, a running tandem up, a picker, or a cluster) and the addresses of parts
// that cannot be found from there. It prints one line for each check: ok, warn, FAIL or unknown, what it saw, and what to
// do. The table of checks is in checks.go.
//
// A check reports unknown where it cannot see: most engines do not show their arguments, and the doctor does not guess. Each
// fault is reported once: checks that need an answer from an engine leave out the engines that do not answer.
//
// SGLang's engines are asked what they say of themselves (/model_info, /v1/loads, /server_info), and their bootstrap servers to whom
// they belong.
//
// The doctor changes nothing. It reads pages of engines, each once, and sends one completion without a prompt, which engines
// refuse;
// --probe adds one short request for each pair. The most expensive page is a vLLM's /server_info, which exists in developer
// mode and shows the arguments. With the operand link it sends prompts of random tokens to pairs of engines, and measures what moves their KV
// caches (link.go). It reads and prints no prompts of users. It inspects everything in parallel, with a deadline
// for each request, so an unresponsive pool is a finding and not a wait.
package doctor
