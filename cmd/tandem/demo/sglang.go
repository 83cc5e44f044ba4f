package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/stack"
)

const sglangPage = 16 // tokens

// sglang describes engines of SGLang: both get a request at once, and meet by a bootstrap room. Decode engines have no prefix cache
// and compute no prompts, so a plain engine takes what stays local. There is no lease: a leg that lost the other one has to be
// aborted, or it waits for a time-out.
var sglang = engine{
	name: stack.EngineSGLang, title: "SGLang", pool: arrangement{2, 2, 1}, split: arrangement{2, 1, 1}, concurrent: true, what: "leg", release: "abort",
	about: []string{"a Tandem sidecar for each decode and plain engine, and the Tandem EPP",
		"prefill and decode engine get a request at once, and meet by a bootstrap room"},
	noFaults:  []string{fault.NoHandoff, fault.BadHandoff, fault.Stale},
	blockSize: sglangPage,
	flags:     kv("--page-size=", "--context-length=", "--max-total-tokens=", sglangPage, poolTokens),
	// A long prompt takes two steps, as with vLLM's engines: fewer and longer ones would be too few for a 99th percentile of a round.
	compared:  append(kv("--page-size=", "--context-length=", "--max-total-tokens=", sglangPage, comparedTokens), "--chunked-prefill-size=2048"),
	reference: []string{"--engine=sglang"},
	singles: append(singles[:len(singles):len(singles)],
		class{"long, SGLang's own call", pd.APISGLang, false, pd.ModeAuto, many, goesRemote}),
	// Decode engines forget a prompt with its answer, and plain ones have never seen it. Prefill engines still have it cached.
	laterTurns: class{"chat, later turns", pd.APIChat, true, pd.ModeAuto, few, goesRemote},
	textOnly:   []pd.API{pd.APIChat},
	wholeSide:  "each engine is plain: it prefills and decodes; while it prefills, its streams get no tokens",
	splitSide:  "2 engines prefill the long prompts and 1 decodes them, 1 plain engine serves the streams",

	// An engine looks every 4 s whether the client of a whole answer has left. A leg that lost the other one would wait for 20 s.
	settles:  6 * time.Second,
	read:     readLoads,
	wanted:   allBlocks,
	served:   func(a *account) (int64, bool) { return a.Requests, true },
	handoffs: prefillLegs,
	judgeKV:  (*evidence).judgeReceived, judgeHeld: (*evidence).judgeIdle, judgeLost: (*evidence).judgeAborted,
}

// The checks of SGLang's engines.
const (
	checkIdle    = "no leg waits, no page is held"
	checkAborted = "failed decode leg: prefill aborted at once, and a new hand-off"
)

// loads is what an engine of SGLang says on /v1/loads, of all its ranks together.
type loads struct {
	running, waiting, tokens int
}

func readLoads(ctx context.Context, s *stage, a *account) error {
	var page struct {
		Loads []struct {
			Running int `json:"num_running_reqs"`
			Waiting int `json:"num_waiting_reqs"`
			Tokens  int `json:"num_used_tokens"`
		}
	}
	if err := s.get(ctx, a.address, "/v1/loads", &page); err != nil {
		return err
	}
	if len(page.Loads) == 0 {
		return fmt.Errorf("reading /v1/loads of %s: it has no ranks", a.name)
	}
	for _, rank := range page.Loads {
		a.running, a.waiting, a.tokens = a.running+rank.Running, a.waiting+rank.Waiting, a.tokens+rank.Tokens
	}
	return nil
}

// allBlocks returns all blocks of the prompts: decode engines of SGLang have none of them cached, and those of TensorRT-LLM read them anyway.
func allBlocks(_ int64, blockSize int, remote ...*exchange) (n int64) {
	for _, x := range remote {
		n += int64(x.blocks(blockSize))
	}
	return n
}

// prefillLegs returns how many prefill legs an engine got.
func prefillLegs(a *account) int64 {
	if a.role == rolePrefill {
		return a.Requests
	}
	return 0
}

// judgeReceived compares the bytes that moved with the blocks, or pages, of the remote prompts, in sum and for every request that ran alone.
func (e *evidence) judgeReceived() report.Check {
	m := e.moved()
	return check(checkKV, m.passed(), "decode engines received %s, which are all %d blocks of %d remote prompts; prefill engines sent %s; "+
		"right for %d of %d requests that ran alone",
		against(e.pulled.bytes, m.pulled*e.blockBytes, "byte"), m.pulled, len(m.remote), against(m.served, m.offered, "byte"), m.right, m.alone)
}

// judgeIdle counts what the engines still hold: by the simulator's own account, and by what a real engine shows too.
func (e *evidence) judgeIdle() report.Check {
	legs, pages, deferred, busy, tokens := 0, 0, 0, 0, 0
	for _, a := range e.accounts {
		legs += a.Live
		pages += a.Blocks.Used
		deferred += a.Deferred
		busy += a.running + a.waiting
		tokens += a.tokens
	}
	return check(checkIdle, legs+pages+deferred+busy+tokens == 0, "on %d engines %d legs live, %d pages are held, %d wait for their release; "+
		"/v1/loads has %d requests and %d tokens", len(e.accounts), legs, pages, deferred, busy, tokens)
}

// judgeAborted checks what became of a request whose decode leg failed: no engine can compute its prompt alone, so the sidecar tried
// the next prefill engine, and had the first one abort its leg, which else had waited for 20 s.
func (e *evidence) judgeAborted() report.Check {
	l := &e.lost
	if l.failure != nil {
		return check(checkAborted, false, "its request: %v", l.failure)
	}
	answered, words := l.answered(e.engine)
	d := l.answer.decision
	passed := answered && d.Verdict == pd.Remote && d.Attempts == 2 && l.told == 1 && l.handoffs == 2 && l.held == 0
	return check(checkAborted, passed, "the answer has %s (%s); prefill engines got %d legs; the sidecar had %d aborted; %d legs and pages still held",
		words, d, l.handoffs, l.told, l.held)
}
