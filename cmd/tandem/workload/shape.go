package workload

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Shape is synthetic traffic: how sessions begin, what their prompts have in common, and how they go on.
type Shape struct {
	Name, About string

	Arrivals    Arrivals
	Concurrency int // sessions that run at a time, instead of arrivals; 0: none
	Requests    int // by default

	groups   int  // of sessions whose prompts begin alike
	shared   dist // tokens of that beginning
	question dist // further tokens of a session's first prompt
	prompts  int  // different questions in a group; 0: no two sessions have the same
	turns    dist // of a session
	added    dist // tokens of each further turn, besides the prompt and the answer before it
	answer   dist // tokens
	think    dist // seconds between an answer and the next turn
	context  int  // most tokens of a prompt with its answer: a session that needs more ends; 0: no limit
}

// Plain is traffic of single requests that share nothing.
func Plain(input, output Lengths) *Shape {
	lengths := func(l Lengths) dist {
		if l.Least == l.Most {
			return fixed(float64(l.Least))
		}
		return between(float64(l.Least), float64(l.Most))
	}
	return &Shape{Requests: 1000, question: lengths(input), answer: lengths(output), turns: fixed(1)}
}

// PartTokens is in what lengths the prompts of shapes are compared: a whole number of every engine's blocks.
const PartTokens = 64

// Stream is a text that prompts have in common, each as far as it goes. A prompt has Tokens of it; of its last stream, all that the
// others leave.
type Stream struct {
	ID     uint64
	Tokens int
}

// Kinds of streams: the lowest bits of their identities.
const (
	groupStream uint64 = iota + 1
	promptStream
	sessionStream
)

func streamID(kind uint64, n int) uint64 { return uint64(n)<<2 | kind }

// Calls returns n calls of a shape; the last session may have fewer turns than it would. First turns have no time yet: see Arrivals.
func (s *Shape) Calls(r *rand.Rand, n int) []Call {
	all := slices.Grow([]Call(nil), n)
	beginnings := make([]int, max(1, s.groups))
	for i := range beginnings {
		beginnings[i] = s.shared.tokens(r)
	}
	for session := 0; len(all) < n; session++ {
		all = s.session(r, all, session, beginnings)
	}
	return all[:n]
}

// session appends the turns of a session.
func (s *Shape) session(r *rand.Rand, all []Call, number int, beginnings []int) []Call {
	turns := max(1, s.turns.tokens(r))
	group := 0
	if len(beginnings) > 1 {
		group = r.IntN(len(beginnings))
	}
	input := beginnings[group]
	var streams []Stream
	if input > 0 {
		streams = append(streams, Stream{streamID(groupStream, group), input})
	}
	switch {
	case s.prompts > 0:
		prompt := group*s.prompts + r.IntN(s.prompts)
		streams = append(streams, Stream{ID: streamID(promptStream, prompt)})
		input += s.question.tokens(rand.New(rand.NewPCG(uint64(prompt), 0))) // equal prompts are equally long
	default:
		if turns > 1 || len(streams) > 0 {
			streams = append(streams, Stream{ID: streamID(sessionStream, number)})
		}
		input += s.question.tokens(r)
	}
	for turn := range turns {
		c := Call{Input: max(1, input), Output: max(1, s.answer.tokens(r)), Streams: streams, BlockTokens: PartTokens}
		if s.context > 0 && c.Input+c.Output > s.context {
			if turn > 0 {
				break
			}
			c.Input = max(1, s.context-c.Output)
		}
		if turn > 0 {
			c.After, c.Think = len(all), s.think.seconds(r)
		}
		all = append(all, c)
		input = c.Input + c.Output + s.added.tokens(r)
	}
	return all
}

func poisson(first, last float64) Arrivals { return Arrivals{Rates: Rates{first, last}} }
func constant(first, last float64) Arrivals {
	return Arrivals{Rates: Rates{first, last}, Constant: true}
}

// once is the number of turns of requests that no other follows.
var once = fixed(1)

// shapes are those of benchmarks that are run on real clusters.
var shapes = []Shape{
	{Name: "pd-guide", About: "5,000 tokens in, 250 out, at a constant 45 requests/s", Arrivals: constant(45, 45), Requests: 5400,
		question: fixed(5000), answer: fixed(250), turns: once},
	{Name: "pd-even", About: "1,024 tokens in and out, at a constant request/s", Arrivals: constant(1, 1), Requests: 300,
		question: fixed(1024), answer: fixed(1024), turns: once},
	{Name: "shared-prefix", About: "32 system prompts of 2,048 tokens with 32 questions of 256 each, 256 out, 2 to 20 requests/s",
		Arrivals: constant(2, 20), Requests: 3000, groups: 32, prompts: 32, shared: fixed(2048), question: fixed(256), answer: fixed(256), turns: once},
	{Name: "b2b-saas", About: "150 system prompts of 6,000 tokens with 5 questions of 1,200 each, 1,000 out, 3 to 60 requests/s",
		Arrivals: poisson(3, 60), Requests: 6000, groups: 150, prompts: 5, shared: fixed(6000), question: fixed(1200), answer: fixed(1000), turns: once},
	{Name: "b2b-saas-short", About: "150 system prompts of 2,000 tokens with 5 questions of 500 each, 500 out, 3 to 60 requests/s",
		Arrivals: poisson(3, 60), Requests: 6000, groups: 150, prompts: 5, shared: fixed(2000), question: fixed(500), answer: fixed(500), turns: once},
	{Name: "tiered-prefix", About: "250 beginnings of 16,000 tokens, more than the caches hold, with 5 questions of 256 each, 256 out, 5 to 40 requests/s",
		Arrivals: poisson(5, 40), Requests: 4000, groups: 250, prompts: 5, shared: fixed(16_000), question: fixed(256), answer: fixed(256), turns: once},
	{Name: "wide-ep", About: "2,000 tokens in and out, 2,048 requests at a time", Concurrency: 2048, Requests: 8192,
		question: fixed(2000), answer: fixed(2000), turns: once},
	{Name: "document-qa", About: "documents of 49,152 tokens, 6 questions of 256 each, 256 out, 128 conversations at a time", Concurrency: 128, Requests: 6 * 192,
		question: fixed(49_152 + 256), answer: fixed(256), turns: fixed(6), added: fixed(256)},
	{Name: "agentic-coding", About: "3,000 shared tokens, 160,000 of a repository, then 1,500 a turn until 262,144 are reached, 425 out, tools take 15 s, 64 agents",
		Concurrency: 64, Requests: 5000, groups: 1, shared: fixed(3000), question: skewed(160_000, 0.5, 10_000, 0), answer: decaying(425, 20, 8000),
		turns: decaying(540, 1, 0), added: decaying(1500, 50, 0), think: decaying(15, 0, 0), context: 262_144},
	{Name: "code-generation", About: "100 system prompts of 3,000 to 100,000 tokens, 2 to 20 turns that add 100 to 10,000 tokens, 50 to 4,000 out, 50 sessions at a time",
		Concurrency: 50, Requests: 3000, groups: 100, shared: around(55_000, 25_000, 3000, 100_000), question: decaying(1500, 100, 10_000),
		answer: decaying(800, 50, 4000), turns: decaying(6, 2, 20), added: decaying(1500, 100, 10_000)},
	{Name: "reasoning", About: "250 shared and 1,000 own tokens, answers of 8,000 on average and up to 32,000, 200 requests at a time",
		Concurrency: 200, Requests: 2000, groups: 1, shared: fixed(250), question: fixed(1000), answer: decaying(8000, 100, 32_000), turns: once},
	{Name: "chat", About: "5,000 shared tokens, 4 turns that add about 50, about 100 out, users think 10 s, 4 sessions/s begin", Arrivals: poisson(4, 4), Requests: 5000,
		groups: 1, shared: fixed(5000), question: between(30, 70), answer: between(50, 150), turns: fixed(4), added: between(30, 70), think: decaying(10, 1, 120)},
	{Name: "sharegpt", About: "lengths as in ShareGPT: about 160 tokens in, 340 out, 10 to 1,024 each, 1 to 8 requests/s", Arrivals: poisson(1, 8), Requests: 2000,
		question: skewed(160, 1.2, 10, 1024), answer: skewed(340, 1, 10, 1024), turns: once},
	{Name: "chatbot", About: "about 4,096 tokens in, 1,024 out, 1 to 8 requests/s", Arrivals: poisson(1, 8), Requests: 2000,
		question: around(4096, 2048, 16, 16_384), answer: around(1024, 512, 1, 4096), turns: once},
	{Name: "code-completion", About: "about 2,048 tokens in, 128 out, 1 to 20 requests/s", Arrivals: poisson(1, 20), Requests: 4000,
		question: around(2048, 1024, 16, 8192), answer: around(128, 64, 1, 512), turns: once},
	{Name: "summarization", About: "about 2,048 tokens in, 256 out, 1 to 20 requests/s", Arrivals: poisson(1, 20), Requests: 4000,
		question: around(2048, 1024, 16, 8192), answer: around(256, 128, 1, 1024), turns: once},
	{Name: "long-prompts", About: "95,000 shared and 5,000 own tokens, 500 to 1,000 out, 10 requests/s", Arrivals: poisson(10, 10), Requests: 2000,
		groups: 1, shared: fixed(95_000), question: fixed(5000), answer: between(500, 1000), turns: once},
}

// Shapes returns the shapes, whose fields the caller may change.
func Shapes() []Shape { return slices.Clone(shapes) }

// ShapeOf returns the shape of a name; false if there is none.
func ShapeOf(name string) (Shape, bool) {
	i := slices.IndexFunc(shapes, func(s Shape) bool { return s.Name == name })
	if i < 0 {
		return Shape{}, false
	}
	return shapes[i], true
}

// scaledTime divides a time by a speed.
func scaledTime(d time.Duration, speed float64) time.Duration {
	return time.Duration(float64(d) / speed)
}

// Hasten has calls come, and users think, so many times as fast.
func Hasten(calls []Call, speed float64) {
	for i := range calls {
		calls[i].Due, calls[i].Think = scaledTime(calls[i].Due, speed), scaledTime(calls[i].Think, speed)
	}
}
