package demo

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// engine is what the demo has to know of the engines that it simulates: all that differs between those of vLLM, SGLang and TensorRT-LLM.
type engine struct {
	name  string // of stack.PDOptions
	title string // for a person
	// keeper says that sidecars have a NIXL agent process, by which they release hand-offs.
	keeper bool
	// concurrent says that both legs of a request are sent at once.
	concurrent bool
	about      []string // of the stack, after its engines
	noFaults   []string // of the simulator, that these engines do not have

	// pool is what serves the demo's requests, and split the P/D side of the comparison.
	pool, split arrangement

	blockSize           int // tokens
	flags               []string
	reference, compared []string // further flags: of the reference, and of the engines that are compared

	singles              []class  // outside of conversations
	laterTurns           class    // of conversations
	textOnly             []pd.API // whose answers have no token ids, and whose requests do not ask for them
	wholeSide, splitSide string   // what the engines of a side of the comparison do

	// settles is how long an engine may hold something after the last answer.
	settles time.Duration
	// read adds to an account what the simulator does not say of itself; nil: nothing.
	read func(ctx context.Context, s *stage, a *account) error
	// pulledTokens returns, from a metrics page, how many prompt tokens came from another engine; nil: there is no such number.
	pulledTokens func(page []byte) (int64, error)
	// wanted returns how many blocks have to move for requests, if the engines count so many of their tokens as pulled.
	wanted func(tokens int64, blockSize int, remote ...*exchange) int64
	// served returns how many legs or hand-offs an engine counts that it has served; ok is false if it does not count them.
	served func(a *account) (n int64, ok bool)
	what   string // served counts
	// release is how the sidecar has a failed request release what its engines hold: the label way of its metric.
	release string
	// handoffs returns how many hand-offs of a failed decode leg an engine counts.
	handoffs func(a *account) int64

	judgeKV, judgeHeld, judgeLost func(e *evidence) report.Check
}

// engines are those that can be simulated.
var engines = map[string]*engine{stack.EngineVLLM: &vllm, stack.EngineSGLang: &sglang, stack.EngineTRTLLM: &trtllm}

// arrangement is how many engines a stack has of each role. Plain ones take what stays local where decode engines compute no prompts.
type arrangement struct{ prefill, decode, plain int }

// String counts the engines for a person.
func (a arrangement) String() string {
	if a.plain == 0 {
		return fmt.Sprintf("%d prefill and %d decode engines", a.prefill, a.decode)
	}
	return fmt.Sprintf("%d prefill, %d decode and %d plain engines", a.prefill, a.decode, a.plain)
}

// count returns how many engines there are.
func (a arrangement) count() int { return a.prefill + a.decode + a.plain }

// short is the shortest description.
func (a arrangement) short() string {
	if a.plain == 0 {
		return fmt.Sprintf("%d+%d", a.prefill, a.decode)
	}
	return fmt.Sprintf("%d+%d+%d", a.prefill, a.decode, a.plain)
}

// blocks returns how many blocks the prompt of a request fills.
func (x *exchange) blocks(size int) int { return (x.reference.promptTokens + size - 1) / size }

// kv are the flags for a pool of so many tokens, by the names that an engine has for them.
func kv(size, length, pool string, blockSize, tokens int) []string {
	return []string{size + strconv.Itoa(blockSize), length + "8192", pool + strconv.Itoa(tokens)}
}

const (
	// poolTokens is a little more KV than the concurrent requests need, so that prefix caches evict, as real ones do.
	poolTokens = 32768
	// comparedTokens is enough for all concurrent requests.
	comparedTokens = 131072
)

// state is what an engine's /sim/state says; what engines of its kind do not have is 0.
type state struct {
	Blocks struct {
		Used int `json:"used"`
	} `json:"blocks"`
	Requests      int64 `json:"requests"` // that were queued
	KVBytesRead   int64 `json:"kv_bytes_read"`
	KVBytesServed int64 `json:"kv_bytes_served"`

	Released int64 `json:"released"` // leases of vLLM that a notification ended
	Expired  int64 `json:"expired"`  // leases of vLLM that expired, and hand-offs of TensorRT-LLM that were not read in time

	Live     int `json:"live"`     // requests of SGLang or TensorRT-LLM that have not ended, those that wait for the other leg among them
	Deferred int `json:"deferred"` // requests of SGLang that have ended, and whose pages are not free yet
	Kept     int `json:"kept"`     // context legs of TensorRT-LLM that have ended, and whose blocks no generation engine has read yet
}

// idle reports whether the engine holds nothing for requests.
func (s *state) idle() bool {
	return s.Blocks.Used == 0 && s.Live == 0 && s.Deferred == 0 && s.Kept == 0
}

// account is what an engine of the stack says of itself.
type account struct {
	instance
	state
	loads // of SGLang
}
