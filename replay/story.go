package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/replay/engine"
)

// Story is why one request went where it went, and what was done there.
type Story struct {
	Explanation *epp.Explanation // of the pick, as the picker's POST /explain gives it
	Events      []Event          // in the order of time

	world *world
	due   time.Duration
	told  int // parts of the steps of the request's present leg that are among the events
}

// Event is something that happened to a request.
type Event struct {
	At     time.Duration // after the request arrived
	Engine string
	What   string
}

// story begins the story of request i, if it is wanted. It does not change the pick.
func (p *picker) story(i int, asked *epp.Request) *Story {
	w := p.world
	if i+1 != w.options.Explain {
		return nil
	}
	d, err := p.sched.Explain(context.Background(), asked)
	s := &Story{Explanation: epp.Explain(asked, d, err), world: w, due: w.result.Records[i].Due}
	if s.Explanation.Decider.Name != "" {
		s.Explanation.Decider.Parameters = p.sched.Stages().Splitting().Decider.Decider
	}
	w.result.Story = s
	return s
}

func (s *Story) add(n *node, format string, args ...any) {
	if s != nil {
		s.at(s.world.clock.now, n, fmt.Sprintf(format, args...))
	}
}

func (s *Story) at(now time.Duration, n *node, what string) {
	s.Events = append(s.Events, Event{now - s.due, n.name, what})
}

// computed tells the steps that led to a token of r.
func (s *Story) computed(n *node, r *engine.Request, what string) {
	if s == nil {
		return
	}
	parts := r.Took[s.told:]
	if s.told == 0 && !r.Remote {
		what := fmt.Sprintf("leaves the queue, after %v; %d of %d tokens of the prompt are cached", rounded(r.Waited), r.Cached, r.Prompt)
		if r.Loaded > 0 {
			what += fmt.Sprintf(", %d of these in the host's memory", r.Loaded)
		}
		s.at(parts[0].From, n, what)
	}
	if s.told = len(r.Took); r.Hold {
		s.told = 0 // the next leg is another request, to another engine
	}
	for i := 0; i < len(parts); {
		// Steps that compute answers are told together: there may be thousands.
		p, most := parts[i], parts[i].Batch
		for i++; i < len(parts) && p.Tokens == 1 && parts[i].Tokens == 1; i++ {
			p.Steps, p.To, p.New, most = p.Steps+parts[i].Steps, parts[i].To, max(p.New, parts[i].New), max(most, parts[i].Batch)
		}
		took := p.To - p.From
		switch {
		case p.Tokens > 1:
			s.at(p.From, n, fmt.Sprintf("a step of %v computes %d tokens of the prompt; %d of other prompts and %d running requests are in it",
				rounded(took), p.Tokens, p.New-p.Tokens, p.Batch))
		case p.Steps == 1:
			s.at(p.From, n, fmt.Sprintf("a step of %v computes a token; %d running requests and %d tokens of prompts are in it", rounded(took), most, p.New))
		default:
			s.at(p.From, n, fmt.Sprintf("%d steps of %v on average compute a token each; up to %d running requests and %d tokens of prompts are in one",
				p.Steps, rounded(took/time.Duration(p.Steps)), most, p.New))
		}
	}
	if r.Preempted > 0 {
		what += fmt.Sprintf("; it was preempted %d times so far", r.Preempted)
	}
	s.add(n, "%s", what)
}

// rounded drops digits that mean nothing.
func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
