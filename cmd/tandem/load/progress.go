package load

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/client"
)

// progress tells a person what is going on: on a terminal by a line that is updated in place, otherwise by a line for each round.
type progress struct {
	to       io.Writer
	terminal bool
	rounds   int // in all

	mu       sync.Mutex
	shown    time.Time // when the line was last updated
	done     int       // rounds
	round    string    // which one it is
	calls    int       // of the round
	inFlight int
	whole    int // answered
	failed   int
}

func newProgress(to io.Writer) *progress { return &progress{to: to, terminal: boot.IsTerminal(to)} }

// refresh is the least time between two updates of the line.
const refresh = 200 * time.Millisecond

func (p *progress) begin(side string, at *point, number, calls int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.round, p.calls, p.inFlight, p.whole, p.failed = fmt.Sprintf("round %d, %s", number, side), calls, 0, 0, 0
	if at.tokens > 0 {
		p.round += fmt.Sprintf(", %d input tokens", at.tokens)
	}
	p.show(true)
}

func (p *progress) sent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight++
	p.show(false)
}

func (p *progress) answered(a *client.Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	if a.Failure == nil {
		p.whole++
	} else {
		p.failed++
	}
	p.show(false)
}

// end reports a finished round.
func (p *progress) end(r *round) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	if p.terminal {
		return
	}
	f := r.figures(nil, 0)
	line := fmt.Sprintf("%d/%d %s: %d of %d answered in %.1f s", p.done, p.rounds, p.round, p.whole, p.calls, r.took.Seconds())
	if p.failed > 0 {
		line += fmt.Sprintf(", %d failed", p.failed)
	}
	if v, ok := f["ttft_p50_ms"]; ok {
		line += fmt.Sprintf(", TTFT p50 %s ms", number(v))
	}
	fmt.Fprintln(p.to, line)
}

// show updates the line. The caller holds the lock.
func (p *progress) show(now bool) {
	if !p.terminal || !now && time.Since(p.shown) < refresh {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.to, "%s%d/%d %s: %d of %d answered, %d in flight, %d failed", boot.EraseLine, p.done+1, p.rounds, p.round, p.whole, p.calls,
		p.inFlight, p.failed)
}

// say replaces the line on a terminal.
func (p *progress) say(format string, args ...any) {
	if p.terminal {
		fmt.Fprintf(p.to, boot.EraseLine+format, args...)
	}
}

func (p *progress) clear() { p.say("") }
