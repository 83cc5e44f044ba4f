package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/stack"
)

// comparedModel is slow enough for two slow cores: a decode step takes 15 ms, so the times of the model dominate those of the
// machine. Prefill of 1000 tokens takes 79 ms, in which no stream of the engine gets a token. Kernel times that AIConfigurator
// 0.12 has measured on four H100 agree: 15.2 ms a step, and 57 ms more for each 1000 tokens that are prefilled in it.
const comparedModel = "llama-3.1-70b-4xh100"

// comparedGoal is what a client wants of a request: an answer that begins soon and never halts for a time that a reader notices.
var comparedGoal = report.Goal{TTFT: 1000, Gap: 100}

// kind is one kind of request of the compared load. Its arrivals are a Poisson process of which every round has the expected
// number, so that rounds differ less.
type kind struct {
	name    string
	rate    int // arrivals a second
	prompt  int // tokens
	answer  int // tokens
	verdict pd.Verdict
}

// kinds are the compared load: long prompts arrive while streams decode. The long prompts keep two prefill engines busy for two
// thirds of the time.
var kinds = []kind{
	{"streams", 10, 128, 48, pd.Local},
	{"long prompts", 4, 4000, 16, pd.Remote},
}

// comparedSeconds is the time in which the requests of a round arrive.
const comparedSeconds = 2

// call is one request of a round.
type call struct {
	*kind
	due  time.Duration // after the beginning of the round
	body []byte
}

// calls returns the calls of a round, which are the same in every run. Both sides of a pair get the same lengths and arrivals,
// and different prompts: the engines must not find them in their prefix caches.
func calls(pair, side int) ([]call, error) {
	arrivals := rand.New(rand.NewPCG(uint64(pair), 5))
	tokens := rand.New(rand.NewPCG(uint64(pair), uint64(100+side)))
	var all []call
	for i := range kinds {
		k := &kinds[i]
		for range k.rate * comparedSeconds {
			body, err := k.body(tokens)
			if err != nil {
				return nil, err
			}
			all = append(all, call{k, time.Duration(arrivals.Float64() * float64(comparedSeconds*time.Second)), body})
		}
	}
	return all, nil
}

// body returns a request with a random prompt. Token ids have an exact length for engines and picker.
func (k *kind) body(r *rand.Rand) ([]byte, error) {
	prompt := make([]int, k.prompt)
	for i := range prompt {
		prompt[i] = 1000 + r.IntN(100_000) // no special tokens
	}
	body, err := json.Marshal(map[string]any{"model": comparedModel, "prompt": prompt, "max_tokens": k.answer, "ignore_eos": true,
		"temperature": 0, "stream": true})
	if err != nil {
		return nil, fmt.Errorf("writing a request: %w", err)
	}
	return body, nil
}

// side is one arrangement of the engines.
type side struct {
	name     string
	about    string // what the engines do
	endpoint *client.Endpoint
	local    bool // all prompts are prefilled where they are decoded
}

// measured is one call and its answer.
type measured struct {
	call
	late   time.Duration // from when it was due to when it was sent
	ttft   time.Duration // from when it was due to the first token
	answer *client.Answer
}

// asMeant reports whether the request was answered, with prefill where the side wants it.
func (m *measured) asMeant(s *side) bool {
	want := m.verdict
	if s.local {
		want = pd.Local
	}
	return m.answer.Failure == nil && m.answer.Decision != nil && m.answer.Decision.Verdict == want
}

// contest is the comparison of local prefill with P/D.
type contest struct {
	engine       *engine
	split, whole *stack.Group // the P/D stack with its engines; the stack without prefill
	sides        [2]*side
}

// compareSides measures both sides in turns. The error is one of the demo itself; ended is how the programs ended.
func compareSides(ctx context.Context, with *settings, line *progress) (found *comparison, ended, err error) {
	c := &contest{engine: with.engine()}
	var alive context.Context
	c.split, alive = stack.NewGroup(ctx)
	c.whole, alive = stack.NewGroup(alive)
	if err = c.start(alive, with); err == nil {
		found, err = c.measure(alive, with.Pairs, line)
	}
	if err != nil && alive.Err() != nil {
		err = context.Cause(alive)
	}
	for _, s := range c.sides {
		if s != nil {
			s.endpoint.Close()
		}
	}
	return found, errors.Join(c.whole.Stop(), c.split.Stop()), err
}

// start starts the engines with a P/D stack, and a second stack in which each engine has a sidecar and serves whole requests. These are
// the same engines, or as many others where an engine can do only the one or the other.
func (c *contest) start(ctx context.Context, with *settings) error {
	e := c.engine
	options := stack.PDOptions{Dir: with.BinDir, Engine: e.name, Prefill: e.split.prefill, Decode: e.split.decode, Plain: e.split.plain, Threshold: threshold,
		Proxy: with.proxy(), Transport: with.Transport, Library: with.Library, Keeper: e.keeper,
		SimFlags: append([]string{"--model=" + comparedModel}, e.compared...)}
	split, err := stack.StartPD(ctx, c.split, options)
	if err != nil {
		return err
	}
	if e.split.plain > 0 {
		options.Prefill, options.Decode, options.Plain = 0, 0, e.split.count()
	} else {
		options = stack.PDOptions{Dir: with.BinDir, Engine: e.name, Proxy: with.proxy()}
		for _, pod := range append(split.Prefill, split.Decode...) {
			options.DecodeEngines = append(options.DecodeEngines, pod.Engine)
		}
	}
	whole, err := stack.StartPD(ctx, c.whole, options)
	if err != nil {
		return err
	}
	for i, s := range []struct {
		name, about, proxy string
		local              bool
	}{
		{"all local", e.wholeSide, whole.Proxy, true},
		{"P/D, " + e.split.short(), e.splitSide, split.Proxy, false},
	} {
		endpoint, err := client.New(client.Options{URL: "http://" + s.proxy, Model: comparedModel, API: pd.APICompletions, Stream: true,
			ConnectTimeout: 5 * time.Second, Timeout: 30 * time.Second, Connections: 100})
		if err != nil {
			return err
		}
		c.sides[i] = &side{s.name, s.about, endpoint, s.local}
	}
	return nil
}

// comparison is the result of a contest.
type comparison struct {
	data        report.Comparison
	asMeant, of int // requests that were served as their side wants it
}

// measure runs the rounds. The sides take turns, and the one that begins alternates: what changes over time must not favour one.
func (c *contest) measure(ctx context.Context, pairs int, line *progress) (*comparison, error) {
	m, err := model.Named(comparedModel)
	if err != nil {
		return nil, err
	}
	found := &comparison{data: c.describe(m)}
	for pair := range pairs + 1 { // the first is for connections, and for the first contact of each pair of engines
		for turn := range c.sides {
			which := (pair + turn) % len(c.sides)
			s := c.sides[which]
			round, err := calls(pair, which)
			if err != nil {
				return nil, err
			}
			line.say("comparing local prefill with P/D: round %d of %d, %s …", pair, pairs, s.name)
			all := s.run(ctx, round)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if pair > 0 {
				found.add(s, which, all)
			}
		}
	}
	return found, nil
}

func (c *contest) describe(m model.Model) report.Comparison {
	on := "the same %d engines"
	if c.engine.split.plain > 0 {
		on = "%d engines of each side"
	}
	on = fmt.Sprintf(on, c.engine.split.count())
	d := report.Comparison{On: on, Step: m.StepMs, Goal: comparedGoal, About: []string{
		fmt.Sprintf("%s, simulated: %s on %s", on, comparedModel, c.engine.title),
		fmt.Sprintf("open loop, random arrivals for %d s a round", comparedSeconds),
	}}
	for _, k := range kinds {
		d.About = append(d.About, fmt.Sprintf("%s: %d a second, %d tokens in, %d out", k.name, k.rate, k.prompt, k.answer))
	}
	for i, s := range c.sides {
		d.Sides[i].Name, d.Sides[i].About = s.name, s.about
	}
	return d
}

// run sends each call of a round when it is due, whether or not others have been answered, and waits for all answers.
func (s *side) run(ctx context.Context, round []call) []measured {
	all := make([]measured, len(round))
	began := time.Now()
	var sending sync.WaitGroup
	for i := range round {
		sending.Go(func() {
			c := round[i]
			due := began.Add(c.due)
			timer := time.NewTimer(time.Until(due))
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done(): // the caller drops the round
				return
			}
			a := s.endpoint.Send(ctx, client.Request{Body: c.body})
			// Times count from when it was due, so that a late send is not hidden.
			all[i] = measured{call: c, late: a.Sent.Sub(due), ttft: a.First.Sub(due), answer: a}
		})
	}
	sending.Wait()
	return all
}

func (c *comparison) add(s *side, which int, all []measured) {
	round := report.Round{Seconds: comparedSeconds}
	for i := range all {
		m := &all[i]
		c.of++
		if m.asMeant(s) {
			c.asMeant++
		}
		x := report.Sample{Kind: m.name, TTFT: inMillis(m.ttft), Late: inMillis(m.late)}
		if m.answer.Failure != nil {
			x.TTFT, x.Failure = 0, m.answer.Failure.Error()
		}
		for _, gap := range m.answer.Gaps {
			x.ITL = append(x.ITL, inMillis(gap))
		}
		round.Samples = append(round.Samples, x)
	}
	c.data.Sides[which].Rounds = append(c.data.Sides[which].Rounds, round)
}

// judgeComparison checks that both sides were what they are called.
func (e *evidence) judgeComparison() report.Check {
	c := e.compared
	return check(checkCompared, c.asMeant == c.of && c.of > 0, "%d of %d answered, and prefilled where their side wants it", c.asMeant, c.of)
}
