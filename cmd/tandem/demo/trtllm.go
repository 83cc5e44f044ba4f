package demo

import (
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/stack"
)

const trtllmBlock = 32 // tokens

// trtllm describes engines of TensorRT-LLM, context first: the context engine computes the prompt and the first token, and keeps its
// blocks until the generation engine has read all of them, whatever that has cached. Generation engines compute prompts themselves, and
// so take what stays local. Nothing but a read frees what a context engine keeps, or a time-out of a minute.
var trtllm = engine{
	name: stack.EngineTRTLLM, title: "TensorRT-LLM", pool: arrangement{2, 2, 0}, split: arrangement{2, 2, 0}, what: "leg", release: "cancel",
	about: []string{"a Tandem sidecar for each generation (decode) engine, and the Tandem EPP",
		"the context (prefill) engine computes the prompt and the first token, and the generation engine reads its KV"},
	noFaults:  []string{fault.NoHandoff, fault.BadHandoff, fault.Stale},
	blockSize: trtllmBlock,
	flags:     kv("--block-size=", "--max-model-len=", "--blocks=", trtllmBlock, poolTokens/trtllmBlock),
	compared:  kv("--block-size=", "--max-model-len=", "--blocks=", trtllmBlock, comparedTokens/trtllmBlock),
	reference: []string{"--engine=trtllm"},
	singles:   singles, laterTurns: laterTurn,
	textOnly:  []pd.API{pd.APIChat, pd.APICompletions},
	wholeSide: "each engine prefills and decodes; while it prefills, its streams get no tokens",
	splitSide: "2 engines prefill the long prompts, the other 2 decode everything",

	// A context engine learns of the end of a transfer within milliseconds. An engine looks every second whether a client has left.
	settles:  3 * time.Second,
	wanted:   allBlocks,
	served:   func(a *account) (int64, bool) { return a.Requests, true },
	handoffs: prefillLegs,
	judgeKV:  (*evidence).judgeReceived, judgeHeld: (*evidence).judgeKept, judgeLost: (*evidence).judgeRead,
}

// The checks of TensorRT-LLM's engines.
const (
	checkKept = "no block is held, no hand-off waits"
	checkRead = "hand-off of a failed decode leg read at once, which frees it"
)

// judgeKept counts what the engines still hold, and hand-offs that no generation engine has read in time.
func (e *evidence) judgeKept() report.Check {
	legs, blocks, kept := 0, 0, 0
	var expired int64
	for _, a := range e.accounts {
		legs += a.Live
		blocks += a.Blocks.Used
		kept += a.Kept
		expired += a.Expired
	}
	return check(checkKept, int64(legs+blocks+kept)+expired == 0, "on %d engines %d legs live, %d blocks are held, %d hand-offs wait to be read; %d expired",
		len(e.accounts), legs, blocks, kept, expired)
}

// judgeRead checks what became of a request whose decode leg failed: the generation engine computed the prompt, and the sidecar had it
// read the hand-off by a request of one token, since the context engine would otherwise have kept it for a minute.
func (e *evidence) judgeRead() report.Check {
	l := &e.lost
	if l.failure != nil {
		return check(checkRead, false, "its request: %v", l.failure)
	}
	answered, words := l.answered(e.engine)
	passed := answered && l.answer.decision.Reason == pd.TransferFailed && l.told == 1 && l.handoffs == 1 && l.expired == 0 && l.held == 0
	return check(checkRead, passed, "the answer has %s (%s); context engines got %d legs; the sidecar had %d hand-offs read, %d expired; "+
		"%d legs and blocks still held", words, l.answer.decision, l.handoffs, l.told, l.expired, l.held)
}
