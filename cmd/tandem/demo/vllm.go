package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

const vllmBlock = 32 // tokens

// vllm describes engines of vLLM: prefill keeps a hand-off under a lease until it is told that decode has read it. Decode engines have
// prefix caches, compute prompts themselves, and so take what stays local.
var vllm = engine{
	name: stack.EngineVLLM, title: "vLLM", pool: arrangement{2, 2, 0}, split: arrangement{2, 2, 0}, keeper: true, what: "hand-off", release: "nixl",
	about:     []string{"a Tandem sidecar with a NIXL agent process (keeper) for each decode engine, and the Tandem EPP"},
	blockSize: vllmBlock,
	flags:     kv("--block-size=", "--max-model-len=", "--blocks=", vllmBlock, poolTokens/vllmBlock),
	compared:  kv("--block-size=", "--max-model-len=", "--blocks=", vllmBlock, comparedTokens/vllmBlock),
	singles:   singles, laterTurns: laterTurn,
	wholeSide: "each engine prefills and decodes; while it prefills, its streams get no tokens",
	splitSide: "2 engines prefill the long prompts, the other 2 decode everything",

	// Prefill learns of the end of a transfer by a notification, which takes milliseconds; a lease would hold the blocks for 30 s.
	settles:      3 * time.Second,
	pulledTokens: vllmPulledTokens,
	wanted:       uncachedBlocks,
	served:       func(a *account) (int64, bool) { return a.Released + a.Expired, a.role == rolePrefill },
	handoffs:     func(a *account) int64 { return a.Released },
	judgeKV:      (*evidence).judgePulled, judgeHeld: (*evidence).judgeStranded, judgeLost: (*evidence).judgeReleased,
}

// The checks of vLLM's engines.
const (
	checkStranded = "no blocks stranded"
	checkReleased = "hand-off of a failed decode leg released at once"
)

// vllmPulledTokens reads vLLM's counter.
func vllmPulledTokens(page []byte) (int64, error) {
	const name, label = "vllm:prompt_tokens_by_source_total{", `source="external_kv_transfer"`
	for line := range strings.Lines(string(page)) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if ok && strings.HasPrefix(series, name) && strings.Contains(series, label) {
			n, err := strconv.ParseFloat(value, 64)
			return int64(n), err
		}
	}
	return 0, fmt.Errorf("there is no %s%s}", name, label)
}

// uncachedBlocks returns the blocks that the decode engine's prefix cache does not have. They are whole blocks, except the last one
// of a prompt, which may not be full.
func uncachedBlocks(tokens int64, blockSize int, remote ...*exchange) int64 {
	for _, x := range remote {
		tokens += int64(x.blocks(blockSize)*blockSize - x.reference.promptTokens)
	}
	return tokens / int64(blockSize)
}

// judgePulled compares the bytes that moved with the prompt tokens that the decode engines count as pulled, in sum and for every
// request that ran alone. It also checks that the prefill engines were notified of the end of every remote prompt, with all
// of its blocks.
func (e *evidence) judgePulled() report.Check {
	m := e.moved()
	return check(checkKV, m.passed(), "decode engines pulled %s for the %d blocks that they had not cached; prefill engines released %s of %d remote prompts; "+
		"right for %d of %d requests that ran alone",
		against(e.pulled.bytes, m.pulled*e.blockBytes, "byte"), m.pulled, against(m.served, m.offered, "byte"), len(m.remote), m.right, m.alone)
}

// judgeStranded counts stranded blocks: those that are still held, and those of hand-offs whose lease expired.
func (e *evidence) judgeStranded() report.Check {
	held := 0
	var released, expired int64
	for _, a := range e.accounts {
		held += a.Blocks.Used
		released += a.Released
		expired += a.Expired
	}
	return check(checkStranded, held == 0 && expired == 0, "%d still held; %d hand-offs released, %d expired", held, released, expired)
}

// judgeReleased checks what became of a request whose decode leg failed: the decode engine computed the prompt, and the sidecar
// released the hand-off.
func (e *evidence) judgeReleased() report.Check {
	l := &e.lost
	if l.failure != nil {
		return check(checkReleased, false, "its request: %v", l.failure)
	}
	answered, words := l.answered(e.engine)
	returned := l.told == 1 && l.handoffs == 1 && l.expired == 0 && l.held == 0
	passed := answered && l.answer.decision.Reason == pd.TransferFailed && returned
	return check(checkReleased, passed, "the answer has %s (%s); hand-offs: %d released, %d of them directly by the sidecar, "+
		"%d expired; %d blocks still held", words, l.answer.decision, l.handoffs, l.told, l.expired, l.held)
}
